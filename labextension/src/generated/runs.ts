// Generated from Python by tools/typescript_types.py. Do not edit.

/** The states of a rank: loading reads the bundle, collecting writes the result. */
export type RankState =
  | 'starting'
  | 'loading'
  | 'running'
  | 'collecting'
  | 'finished'
  | 'failed'
  | 'stopped';

export type RunEnding = 'finished' | 'failed' | 'stopped' | 'timeout';

/**
 * The states of a run. Lost: the launcher disappeared without recording how the run
 * ended.
 */
export type RunState =
  | 'starting'
  | 'running'
  | 'finished'
  | 'failed'
  | 'stopped'
  | 'timeout'
  | 'lost';

/** The base of all events: `time` in seconds since the epoch, `rank` of the writer. */
export interface Event {
  kind: string;
  time: number;
  rank: number;
}

/**
 * A process of the run has started; `create_time` guards against reused pids.
 *
 * `host` is the name of its machine, with several.
 */
export interface Started extends Event {
  kind: 'started';
  pid: number;
  create_time: number;
  device: string;
  host: string;
}

/** A rank entered a state; `detail` is a short sentence for display. */
export interface Status extends Event {
  kind: 'status';
  state: RankState;
  detail: string;
}

/**
 * New points of one curve, in step order.
 *
 * `weights` are the numbers of samples behind each value, for the average over ranks. A
 * rank with an empty shard has weight 0.
 */
export interface Metrics extends Event {
  kind: 'metrics';
  name: string;
  steps: number[];
  values: number[];
  weights: number[];
}

/**
 * The progress of a loop: `step` of `total` (0 when unknown), shown as `label`.
 *
 * `key` identifies the bar: `"loader"` for the training loader, another one for a tqdm
 * bar. `epoch` counts passes over the loader from 1; 0 if not applicable. `samples` are
 * those of all ranks up to training step `train_step`; 0 if not applicable.
 */
export interface Progress extends Event {
  kind: 'progress';
  key: string;
  label: string;
  step: number;
  total: number;
  epoch: number;
  done: boolean;
  samples: number;
  train_step: number;
}

/**
 * A rich output of the cell, shown after `offset` bytes of the log.
 *
 * `action` is `show`, `update` (of `display_id`) or `clear` (the output area).
 */
export interface Display extends Event {
  kind: 'display';
  offset: number;
  action: 'show' | 'update' | 'clear';
  data: Record<string, unknown>;
  metadata: Record<string, unknown>;
  display_id: string;
}

/** Bytes `start` to `end` of this rank's log were written to stderr. */
export interface Stderr extends Event {
  kind: 'stderr';
  start: number;
  end: number;
}

/** The health of a rank, sent about once a second whatever its cell does. */
export interface Heartbeat extends Event {
  kind: 'heartbeat';
  /** the last step taken. */
  step: number;
  /** seconds per step since the last heartbeat; 0 without a step. */
  step_time: number;
  /** the part of it outside backward passes, where ranks wait for one another. */
  own_time: number;
  /** usage in percent of one core; usable cores. */
  cpu: number;
  /** usage in percent of one core; usable cores. */
  cores: number;
  /** of the process and of the machine, in bytes. */
  memory: number;
  /** of the process and of the machine, in bytes. */
  memory_total: number;
  /** utilization in percent; -1 when unknown, as all below. */
  gpu: number;
  /** in bytes; what torch allocated where the driver is not known. */
  gpu_memory: number;
  /** in bytes; what torch allocated where the driver is not known. */
  gpu_memory_total: number;
  /** size of the rank's log, in bytes. */
  logged: number;
  /** backward passes started. */
  passes: number;
  /**
   * the bytes that the rank sent and the number of its collectives, per step since the
   * last heartbeat, as in `nbmgpu.strategies.communication`; empty without a step.
   */
  sent: number[];
}

/** A checkpoint is complete. */
export interface CheckpointWritten extends Event {
  kind: 'checkpoint';
  /** the training step after which it was written. */
  step: number;
  /** size of its files. */
  nbytes: number;
  /** seconds that it held up the cell. */
  held: number;
  /** until it was complete. */
  seconds: number;
}

/** Time and memory of a cell that ran with `--steps`, on this rank. */
export interface Measurements extends Event {
  kind: 'measured';
  /** optimizer steps taken. */
  steps: number;
  /** of each step but the first; samples of all ranks, 0 when unknown. */
  seconds: number[];
  /** of each step but the first; samples of all ranks, 0 when unknown. */
  samples: number[];
  /** bytes of tensors between steps. */
  held: number;
  /** peak bytes of the process, above those before the cell's data arrived. */
  memory: number;
  /**
   * peak bytes that torch allocated on the GPU, -1 without one; see
   * `nbmgpu.rank.metrics.memory`.
   */
  gpu_memory: number;
  /**
   * bytes that the rank sent, and its collectives, in the same steps as `seconds`, as in
   * `nbmgpu.strategies.communication`.
   */
  sent: number[];
  /**
   * bytes that the rank sent, and its collectives, in the same steps as `seconds`, as in
   * `nbmgpu.strategies.communication`.
   */
  collectives: number[];
}

/**
 * The parameters that a rank stores between two steps, by layer; replaces an earlier one.
 */
export interface ParameterShards extends Event {
  kind: 'shards';
  /** names of the layers, such as `model.layers.0`. */
  layers: string[];
  /** of each layer, however many ranks store them. */
  elements: number[];
  /** elements and bytes of them on this rank. */
  stored: number[];
  /** elements and bytes of them on this rank. */
  nbytes: number[];
}

/**
 * Digests of what a rank has done when its cell is finished, to be compared over ranks.
 */
export interface StepDigest extends Event {
  kind: 'step_digest';
  /** backward passes. */
  passes: number;
  /** digest of the batches that they used; equal on ranks that stepped together. */
  batches: string;
  /** digest of how losses reduce over samples; empty if unknown. */
  losses: string;
  /** digests of numbers that a step combines with samples, by the number of its batch. */
  numbers: Record<string, string>;
  /** digest of replicated weights; empty if there are none. */
  weights: string;
  /** digests of persistent buffers, by module class and name. */
  buffers: Record<string, string>;
  /** whether the cell can start again with whole batches. */
  may_restart: boolean;
}

/**
 * A message for the user, above all where numbers differ from one device.
 *
 * `topic` is a stable identifier (`random-step`, `batch-norm`, ...); each topic is shown
 * once, however many ranks emit it.
 */
export interface Notice extends Event {
  kind: 'notice';
  topic: string;
  text: string;
}

/**
 * The rank writes to a folder that TensorBoard reads.
 *
 * `folder` is an absolute path on the rank's machine, or an address such as `gs://...`.
 */
export interface TensorBoardFolder extends Event {
  kind: 'tensorboard';
  folder: string;
}

/**
 * A rank, or the reference, has ended itself for the cell to start again with whole
 * batches.
 *
 * Nothing of the cell has left the ranks, other than its output. `reason` says what the
 * cell does on shards of a batch, as a predicate.
 */
export interface Restart extends Event {
  kind: 'restart';
  reason: string;
}

/**
 * The reference has ended: the first `steps` optimizer steps of the ranks are one
 * device's.
 *
 * `is_whole` is whether these are all; `reason` is why it ended, or empty if time was up.
 */
export interface Verified extends Event {
  kind: 'verified';
  steps: number;
  is_whole: boolean;
  reason: string;
}

/**
 * An exception ended the cell on this rank.
 *
 * `line` is the line of the cell (1-based, 0 when unknown); `traceback` has ANSI colors;
 * `pickled` is the exception in base64, or empty.
 */
export interface Failure extends Event {
  kind: 'failure';
  type: string;
  message: string;
  line: number;
  traceback: string[];
  pickled: string;
}

/**
 * The launcher observed that a rank exited.
 *
 * `code` is negative for a signal, as in subprocess. `terminating` tells that the
 * launcher was already terminating the run, so that the signal may be its own.
 */
export interface Exited extends Event {
  kind: 'exited';
  of_rank: number;
  code: number;
  terminating: boolean;
}

/** The launcher observed that ranks make no progress; with `over`, that they do again. */
export interface Hang extends Event {
  kind: 'hang';
  /** since the last progress of the ranks that wait. */
  seconds: number;
  /** the likely cause, in a sentence. */
  cause: string;
  /** what to do about it, or empty. */
  remedy: string;
  /** where each rank waits, in a sentence per rank. */
  places: string[];
  /** the Python stack of each rank, innermost frame last; empty where it is unknown. */
  stacks: string[];
  /** whether the run ends because of it. */
  stops: boolean;
  /** whether there is progress again; the other attributes are then empty. */
  over: boolean;
}

/** The last event of the launcher: all ranks have exited. */
export interface Ended extends Event {
  kind: 'ended';
  ending: RunEnding;
  detail: string;
}

/** What people call a run. */
export interface RunLabels {
  /** one line, shown in place of the cell's first line. */
  name: string;
  /** words to find runs by, each once. */
  tags: string[];
  /** text of several lines. */
  note: string;
}

/**
 * What a rank spent the time of its profiled steps on; the trace is in the run folder.
 *
 * All times are seconds of the average step. `nbmgpu.rank.profiling.step_parts` defines
 * them.
 */
export interface StepProfile extends Event {
  kind: 'profile';
  /** numbers of the optimizer steps, from 1. */
  first: number;
  /** numbers of the optimizer steps, from 1. */
  last: number;
  /** the sum of the next four. */
  step_time: number;
  /** operations, or kernels of an accelerator. */
  compute: number;
  /** collectives while nothing is computed. */
  communication: number;
  /** waiting for a loader. */
  data: number;
  /** the rest. */
  host: number;
  /** collectives beside computing, which is part of `compute`. */
  hidden: number;
  /** size of the trace. */
  nbytes: number;
}

/** The average profiled step of a rank; see `nbmgpu.runs.profile_event.StepProfile`. */
export interface ProfileRow {
  /** number of the rank. */
  rank: number;
  /** the profiled optimizer steps, such as `5-10`. */
  steps: string;
  /** seconds: the sum of compute, communication, data and host. */
  step_time: number;
  /** seconds. */
  compute: number;
  /** seconds. */
  communication: number;
  /** seconds of communication beside computing, which are part of `compute`. */
  hidden: number;
  /** seconds. */
  data: number;
  /** seconds. */
  host: number;
  /** path of the trace. */
  trace: string;
  /** its size. */
  nbytes: number;
}

/** What the ranks spent the time of their profiled steps on. */
export interface ProfileTable {
  /** of the ranks that have been profiled so far, in their order. */
  rows: ProfileRow[];
}

/** The kernel that launched a run. */
export interface KernelRecord {
  /** its process; `create_time` is in seconds since the epoch, in UTC. */
  pid: number;
  /** its process; `create_time` is in seconds since the epoch, in UTC. */
  create_time: number;
  /** its working directory and module search path, which ranks use too. */
  cwd: string;
  /** its working directory and module search path, which ranks use too. */
  sys_path: string[];
  /** path of the notebook; empty if the kernel does not know it. */
  notebook: string;
  /** name of its machine; empty in records of earlier versions. */
  host: string;
  /** path of its interpreter; empty in records of earlier versions. */
  python: string;
  /** those of `sys_path` that belong to its interpreter. */
  libraries: string[];
}

/**
 * Paths of the bundle and of the result of each rank.
 *
 * They can be opened while the run is active; they may be memory files that vanish with
 * it.
 */
export interface StoragePaths {
  bundle: string;
  results: string[];
}

/** The options that a run was launched with. */
export interface LaunchOptions {
  /** as in `RunOptions`. */
  strategy: string;
  /** as in `RunOptions`. */
  batch: string;
  /** as in `RunOptions`. */
  seed: number | null;
  /** seconds after which the run is stopped; None for no limit. */
  timeout: number | null;
  /** as in `RunOptions`. */
  fresh: boolean;
  /** name of the engine that launched it. */
  engine: string;
  /** whether ranks may ask for a new start with whole batches. */
  may_restart: boolean;
  /** seconds for which a reference compares the ranks with one device; 0 for none. */
  verify: number;
  /**
   * when the first run began that this one replaces, as it failed or was to start again,
   * in seconds since the epoch; None if there is none.
   */
  repeated: number | null;
  /** all `RunOptions` by name, those of the strategy included. */
  values: Record<string, unknown>;
}

/** The description of a run, written before it starts: the content of `run.json`. */
export interface RunRecord {
  /** the run's name. */
  id: string;
  /** in seconds since the epoch, in UTC. */
  created: number;
  /** one name per rank (`cuda:1`, `cpu`). */
  devices: string[];
  /** the options of the launch. */
  options: LaunchOptions;
  /** the kernel that launched it. */
  kernel: KernelRecord;
  /** where the bundle and the results are. */
  storage: StoragePaths;
  /** threads per rank, for computing on the CPU. */
  threads: number;
  /** how the global batch is sharded, as text. */
  batch_line: string;
  /** number of machines; all have as many ranks. */
  nodes: number;
  /**
   * versions of the packages that the cell uses, by distribution, where other machines
   * must have the same; else empty.
   */
  packages: Record<string, string>;
}

/** What the ranks store of a layer, or of neighbouring layers. */
export interface LayerRow {
  /** of the layer, such as `model.layers.0`; `model.layers.0-15` for several. */
  name: string;
  /** number of elements of its parameters. */
  elements: number;
  /** elements and bytes of them on each rank. */
  stored: number[];
  /** elements and bytes of them on each rank. */
  nbytes: number[];
}

/** Which rank stores which parameters between two steps. */
export interface ShardTable {
  /** name of the run's strategy. */
  strategy: string;
  /** position of each rank in the mesh (`dp 0 tp 1`); empty without a mesh. */
  ranks: string[];
  /**
   * by layer, in the order of the model; none where ranks store all parameters, and until
   * all ranks have reported theirs.
   */
  rows: LayerRow[];
  /** the sum of all rows. */
  total: LayerRow;
}
