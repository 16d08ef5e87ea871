// Made from Python by tools/typescript_types.py; a change here is lost.

/**
 * A rank's life: started, reads the bundle, runs the cell, writes the result, and how it
 * ended.
 */
export type RankState =
  | 'starting'
  | 'loading'
  | 'running'
  | 'collecting'
  | 'finished'
  | 'failed'
  | 'stopped';

export type RunEnding = 'finished' | 'failed' | 'stopped' | 'timeout';

/** A run's life. Lost: the launcher is gone without having said how the run ended. */
export type RunState =
  | 'starting'
  | 'running'
  | 'finished'
  | 'failed'
  | 'stopped'
  | 'timeout'
  | 'lost';

/** Common to all events: `time` in seconds since the epoch, `rank` of the writer. */
export interface Event {
  kind: string;
  time: number;
  rank: number;
}

/** A process of the run exists. `create_time` guards against a reused pid. */
export interface Started extends Event {
  kind: 'started';
  pid: number;
  create_time: number;
  device: string;
}

/** A rank entered a state; `detail` is one short sentence for people. */
export interface Status extends Event {
  kind: 'status';
  state: RankState;
  detail: string;
}

/**
 * New points of one curve, in step order.
 *
 * `weights` holds what each value counts for when ranks are averaged: the number of
 * samples behind it. A rank with an empty share has weight 0.
 */
export interface Metrics extends Event {
  kind: 'metrics';
  name: string;
  steps: number[];
  values: number[];
  weights: number[];
}

/**
 * How far a loop is: `step` of `total` (0 when unknown), shown as `label`.
 *
 * `key` names the bar: the training loader's is `"loader"`, a tqdm bar's its own. `epoch`
 * counts passes over the loader from 1, or is 0 where that has no meaning.
 */
export interface Progress extends Event {
  kind: 'progress';
  key: string;
  label: string;
  step: number;
  total: number;
  epoch: number;
  done: boolean;
}

/**
 * A rich output of the cell, to be shown where `offset` bytes of log lie before it.
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

/**
 * How a rank is, about once a second: the rank beats, whatever its cell does meanwhile.
 *
 * `step` is the last one it has taken. `step_time` are the seconds per step since the
 * event before, and `own_time` those of them that it was not in a backward pass, where
 * ranks wait for one another; both are 0 when it took no step. `cpu` is in percent of one
 * core. Memory is in bytes; `gpu` is in percent. What cannot be known is -1. `logged` is
 * the size of its log at this moment, `passes` how many backward passes it has begun.
 */
export interface Vitals extends Event {
  kind: 'vitals';
  step: number;
  step_time: number;
  own_time: number;
  cpu: number;
  cores: number;
  memory: number;
  memory_total: number;
  gpu: number;
  gpu_memory: number;
  gpu_memory_total: number;
  gpu_allocated: number;
  logged: number;
  passes: number;
}

/**
 * What a cell that was given a number of `--steps` has taken and needed on this rank.
 *
 * `seconds` and `samples` (of all ranks, 0 when unknown) are of each step but the first.
 * In bytes: `held` is what its tensors take between steps, `memory` the most that the
 * process had beyond what it had before the cell's data came, `gpu_memory` the most that
 * torch had on its GPU, -1 without one; see `nbmgpu.rank.metrics.memory`.
 */
export interface Measured extends Event {
  kind: 'measured';
  steps: number;
  seconds: number[];
  samples: number[];
  held: number;
  memory: number;
  gpu_memory: number;
}

/**
 * A rank has run its cell to the end, with so many backward `passes`.
 *
 * `batches` is a digest of the numbers of the batches that they were on: ranks that have
 * walked in step have the same. `losses` is one of how their losses reduce over samples,
 * or empty where that is not known. `weights` is one of the weights of which every rank
 * has a whole copy, or empty if there are none: while ranks train one model, copies are
 * equal. `buffers` has one of each buffer that a module's state has, by its module's
 * class and name.
 */
export interface Walked extends Event {
  kind: 'walked';
  passes: number;
  batches: string;
  losses: string;
  weights: string;
  buffers: Record<string, string>;
}

/**
 * Something the user must know, above all where numbers differ from one device.
 *
 * `topic` is a stable identifier (`random-step`, `batch-norm`, ...): a reader shows each
 * topic once, whatever the number of ranks that said it.
 */
export interface Notice extends Event {
  kind: 'notice';
  topic: string;
  text: string;
}

/**
 * An exception ended the cell on this rank.
 *
 * `line` is the cell's own line (1-based, 0 when unknown); `traceback` is ANSI coloured;
 * `pickled` is the exception itself in base64, or empty.
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
 * The launcher saw a rank end.
 *
 * `code` is negative for a signal, as in subprocess; `asked` says that the launcher was
 * ending the run by then, so that the signal may be its own.
 */
export interface Exited extends Event {
  kind: 'exited';
  of_rank: number;
  code: number;
  asked: boolean;
}

/** The launcher's last word: every rank is gone. */
export interface Ended extends Event {
  kind: 'ended';
  ending: RunEnding;
  detail: string;
}

/** What was asked: the content of `run.json`. */
export interface RunRecord {
  /** the run's name. */
  id: string;
  /** seconds since the epoch, in UTC. */
  created: number;
  /** as in `RunOptions`. */
  strategy: string;
  /** one name per rank (`cuda:1`, `cpu`). */
  devices: string[];
  /** as in `RunOptions`. */
  batch: string;
  /** as in `RunOptions`. */
  seed: number | null;
  /** seconds after which the run is ended; None for no limit. */
  timeout: number | null;
  /** as in `RunOptions`. */
  fresh: boolean;
  /** the kernel's, which ranks take on. */
  cwd: string;
  /** the kernel's, which ranks take on. */
  sys_path: string[];
  /**
   * paths to open while the run lives, one result per rank; they may be memory files that
   * vanish with it.
   */
  bundle: string;
  /**
   * paths to open while the run lives, one result per rank; they may be memory files that
   * vanish with it.
   */
  results: string[];
  /** the process that has asked for the run. */
  kernel_pid: number;
  /** seconds since the epoch, in UTC. */
  kernel_create_time: number;
  /** its path; empty where the kernel does not know it. */
  notebook: string;
  /** of a rank, for computing on the CPU. */
  threads: number;
  /** the global batch in words. */
  batch_line: string;
  /** all of these options, and the strategy's. */
  options: Record<string, unknown>;
  /** the name of the engine that started it. */
  engine: string;
}
