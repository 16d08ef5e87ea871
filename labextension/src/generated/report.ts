// Generated from Python by tools/typescript_types.py. Do not edit.
import type { ProfileTable, RunLabels, RunState, ShardTable } from './runs';

export type Best = '' | 'lowest' | 'highest';

/** One metric, drawn. */
export interface CurveLine {
  /** of the metric. */
  name: string;
  /** its newest value, formatted. */
  last: string;
  /** whether that value is finite. */
  finite: boolean;
  /** the number of steps with a value. */
  steps: number;
  /**
   * base64 of little-endian float32 pairs of step and value, at most `POINTS`: the
   * minimum and maximum of each bin of steps.
   */
  points: string;
  /** likewise, the mean of each bin, for smoothing; empty where `points` is complete. */
  means: string;
}

/** A request for the steps from `first` to `last` of one metric. */
export interface CurveRequest {
  name: string;
  first: number;
  last: number;
}

/** The metrics, the loss first. */
export interface Curves {
  /** their lines. */
  shown: CurveLine[];
  /** the number of those left out. */
  hidden: number;
  /**
   * the steps at which epochs of the training loader end, if there are at most
   * `MAX_EPOCHS`.
   */
  epochs: number[];
}

/** How fast a run is. */
export interface Throughput {
  /** the newest values, formatted. */
  rate: string;
  /** the newest values, formatted. */
  step_time: string;
  /**
   * what a rank sends per step, such as `3.0 MiB in 4 collectives`; empty if none does.
   */
  sent: string;
  /** the straggler, -1 when there is none. */
  slowest: number;
  /** a sentence about the straggler, or empty. */
  message: string;
  /** samples (and tokens) per second. */
  rates: CurveLine[];
  /** in seconds, of the whole step and of each rank without waiting for others. */
  step_times: CurveLine[];
}

/** A line of the cell; `failing` marks the innermost one in the traceback. */
export interface CellLine {
  number: number;
  text: string;
  failing: boolean;
}

/**
 * Another rank than the one that failed first: how it ended, and its exception if any.
 *
 * `alike` counts further ranks that ended with the same exception, or all without one.
 */
export interface OtherRank {
  rank: number;
  label: string;
  error: string;
  traceback: string;
  alike: number;
}

/** Why a run failed. */
export interface Cause {
  /** the rank that failed, such as `rank 1` or `rank 1 on node2`; may be empty. */
  origin: string;
  /** the exception, or how the rank ended, in one line. */
  error: string;
  /** the line of the cell; 0 and empty if unknown. */
  number: number;
  /** the line of the cell; 0 and empty if unknown. */
  line: string;
  /** that line and those around it. */
  context: CellLine[];
  /** the likely cause, or empty. */
  explanation: string;
  /** what to try, or empty. */
  remedy: string;
  /** with ANSI colors. */
  traceback: string;
  /** the other ranks. */
  others: OtherRank[];
}

/** The size of a rank's log: lines and bytes. */
export interface LogSize {
  lines: number;
  size: number;
}

/**
 * A request for `count` lines from `first` on, or for the last ones if it is negative.
 *
 * `rank` is -1 for all ranks. With `search`, only lines that contain it count, ignoring
 * case.
 */
export interface LogRequest {
  rank: number;
  first: number;
  count: number;
  search: string;
}

/** A line of a log. */
export interface LogLine {
  /** which rank wrote it. */
  rank: number;
  /** its index in that rank's log. */
  number: number;
  /** its index in the requested list. */
  index: number;
  /** with ANSI colors and no other control characters. */
  text: string;
  /** whether it was written to stderr. */
  stderr: boolean;
}

/** The lines from `first` on, of `total` that match the request. */
export interface LogPage {
  rank: number;
  search: string;
  first: number;
  total: number;
  lines: LogLine[];
}

/** The lowest or highest value of a metric, formatted, and the first step that has it. */
export interface Extreme {
  value: string;
  step: number;
}

/** One metric. */
export interface MetricRow {
  /** of the metric. */
  name: string;
  /** its newest value, formatted. */
  last: string;
  /** whether that value is finite. */
  finite: boolean;
  /** of its finite values; None without any. */
  lowest: Extreme | null;
  /** of its finite values; None without any. */
  highest: Extreme | null;
  /**
   * the mean of the finite values of an epoch or of some points, formatted; empty without
   * any.
   */
  mean: string;
  /** the number of steps with a value. */
  points: number;
  /** which of `lowest` and `highest` is the best value, if the name says so. */
  best: Best;
}

/** The metrics, the loss first and rates last. */
export interface MetricTable {
  /** one for each metric. */
  rows: MetricRow[];
  /** the number of metrics left out. */
  hidden: number;
  /**
   * the last complete epoch, from 1, of which `mean` is; 0 where no epoch is known, and
   * `mean` is that of the last points.
   */
  epoch: number;
  /** the number of these points. */
  recent: number;
}

/** A request for the rows after one step. */
export interface CsvRequest {
  /**
   * the last step of the page before; -1 for the first page, which begins with the title.
   */
  after: number;
  /** those of the first page; empty for the first page. */
  columns: string[];
}

/** Some rows. */
export interface CsvPage {
  /** complete lines. */
  text: string;
  /**
   * the names of the columns, for the next request: other metrics may appear meanwhile.
   */
  columns: string[];
  /** the step of the last row; -1 without rows. */
  last: number;
  /** the number of steps that follow, of the metric that has most. */
  left: number;
}

/** The row of a machine. */
export interface NodeRow {
  /** its number, from 0. */
  node: number;
  /** its host name, empty until one of its ranks has started. */
  name: string;
  /** its first rank, and the number of its ranks. */
  first: number;
  /** its first rank, and the number of its ranks. */
  ranks: number;
  /** the states of its ranks: `running`, or `7 running, 1 failed (exit 1)`. */
  label: string;
  /** the worst of its ranks. */
  tone: Tone;
  /** the smallest of its ranks. */
  step: number;
  /** the median of its ranks, formatted. */
  step_time: string;
  /** whether the straggler is one of its ranks. */
  slowest: boolean;
  /** the largest of its ranks; `gpu_memory` is None where there is no GPU. */
  memory: Meter;
  /** the largest of its ranks; `gpu_memory` is None where there is no GPU. */
  gpu_memory: Meter | null;
  /** that of one of its ranks, and how many others have one; or empty. */
  warning: string;
}

/** A request for the rows of the ranks on `nodes`, by number. */
export interface RankRequest {
  nodes: number[];
}

/** A progress bar: its label, its count, and its fraction (-1 when unknown). */
export interface Bar {
  key: string;
  label: string;
  count: string;
  fraction: number;
}

/** A usage: as text, and as a fraction (-1 when unknown). */
export interface Meter {
  text: string;
  fraction: number;
}

/**
 * The row of a rank.
 *
 * `device` has the position in the device mesh, too, if there is one. `gpu` and
 * `gpu_memory` are None where there is no GPU. `slowest` marks the straggler; `warning`
 * is a sentence, or empty.
 */
export interface RankRow {
  rank: number;
  device: string;
  label: string;
  tone: Tone;
  detail: string;
  step: number;
  step_time: string;
  slowest: boolean;
  cpu: Meter;
  memory: Meter;
  gpu: Meter | null;
  gpu_memory: Meter | null;
  warning: string;
}

/**
 * Positions of steps, each as base64 of little-endian float32 pairs of step and position.
 *
 * An axis is empty if it is not known.
 */
export interface Axes {
  /** since the first event of the run. */
  seconds: string;
  /** passes over the training loader. */
  epochs: string;
  /** on which the cell has trained, of all ranks together. */
  samples: string;
}

export type LineKind = 'same' | 'removed' | 'added' | 'gap';

/** A line of a difference; a `gap` stands for equal lines that are left out. */
export interface DiffLine {
  kind: LineKind;
  text: string;
}

/** How a cell differs from that of the first run; without `lines`, it does not. */
export interface CellDifference {
  lines: DiffLine[];
}

export type Group = 'setting' | 'result' | 'metric';

/** The value of one run: as text, and as a number to sort by, if it is one. */
export interface Cell {
  text: string;
  value: number | null;
}

/** One property of all runs. */
export interface Column {
  /** what kind of property. */
  group: Group;
  /** its title. */
  name: string;
  /** one for each run; its text is empty where it is unknown. */
  cells: Cell[];
  /** whether not all are equal. */
  differs: boolean;
  /** which value is the best one, if any is. */
  best: Best;
}

/** A run of a comparison. */
export interface ComparedRun {
  id: string;
  /**
   * its name, else the first line of its cell, else strategy and ranks; with its time
   * where another run is called the same.
   */
  title: string;
  /** strategy, world size and devices. */
  headline: string;
  status: RunStatus;
  /** in seconds since the epoch. */
  created: number;
  labels: RunLabels;
  /** other positions of its steps than their number. */
  axes: Axes;
}

/** The curves of one metric: `lines[i]` is of the run at index `runs[i]`. */
export interface MetricLines {
  name: string;
  runs: number[];
  lines: CurveLine[];
}

/** Several runs side by side. */
export interface RunComparison {
  /** in the order of the request. */
  runs: ComparedRun[];
  /** of the table; each has a cell for each run, and those that differ come first. */
  columns: Column[];
  /** a chart for each metric, the loss first. */
  metrics: MetricLines[];
  /** the number of metrics left out. */
  hidden: number;
  /** how the cell of each run differs from that of the first run. */
  cells: CellDifference[];
  /** ids of requested runs that do not exist any more. */
  missing: string[];
}

/** The process of the kernel that launched a run, and whether it still runs. */
export interface KernelStatus {
  pid: number;
  create_time: number;
  alive: boolean;
}

/** A small chart without axes of the run's main curve. */
export interface Sparkline {
  /** the name of the curve; empty if there is none. */
  name: string;
  /** at most 60 points `[step, value]`. */
  points: [number, number][];
  /** the newest value, formatted. */
  last: string;
}

/** The entry of a run in a list. */
export interface RunLine {
  id: string;
  /** its state, and how it is displayed. */
  status: RunStatus;
  strategy: string;
  world_size: number;
  /** the first line of the cell that says what it does; empty if the cell is gone. */
  title: string;
  /** strategy, world size and devices. */
  headline: string;
  /** path of the notebook, if the kernel knew it. */
  notebook: string;
  /** in seconds since the epoch. */
  created: number;
  /** in seconds, to now or to the end. */
  duration: number;
  /** the kernel that launched it. */
  kernel: KernelStatus;
  /** of the run, or of its epoch if no more is known, from 0 to 1; -1 when unknown. */
  progress: number;
  /** the main curve. */
  curve: Sparkline;
  /** why it failed, in a sentence, or empty. */
  failure: string;
  /** its name, tags and note. */
  labels: RunLabels;
}

/** Whether the run was asked to stop, and how. */
export type Stopping = '' | 'asked' | 'forced';

export type Unit = 'percent' | 'bytes' | 'bytes/s';

export type Quantity = 'cpu' | 'memory' | 'gpu' | 'gpu_memory' | 'sent';

/** One quantity over the seconds since the run began. */
export interface SystemChart {
  /** what is drawn. */
  quantity: Quantity;
  /** of its values. */
  unit: Unit;
  /** of each rank, or of all ranks taken together. */
  lines: CurveLine[];
}

/**
 * The severity that a front end colors: waiting, working, succeeded, failed, ended
 * neutrally.
 */
export type Tone = 'idle' | 'busy' | 'good' | 'bad' | 'calm';

/** Asks for a part of a trace. */
export interface TraceRequest {
  /** whose trace. */
  rank: number;
  /** bytes that have arrived before. */
  offset: number;
}

/** A part of a trace. */
export interface TracePart {
  /** in base64. */
  content: string;
  /** bytes of the file up to the end of the part. */
  end: number;
  /** bytes of the file; 0 if there is none. */
  size: number;
}

/**
 * The options of the run; `created` is in seconds since the epoch.
 *
 * `verified` says how many steps were compared with one device; empty if none.
 */
export interface About {
  id: string;
  name: string;
  headline: string;
  strategy: string;
  world_size: number;
  devices: string;
  batch: string;
  verified: string;
  folder: string;
  notebook: string;
  created: number;
  note: string;
}

/** A view of another package: the name of its part, and the ES module that draws it. */
export interface ExternalView {
  name: string;
  esm: string;
}

/** Everything that is shown of a run: the payload of each built-in view. */
export interface Parts {
  about: About;
  status: RunStatus;
  notices: string[];
  failure: Cause | null;
  progress: Bar[];
  curves: Curves;
  throughput: Throughput;
  metrics: MetricTable;
  system: SystemChart[];
  ranks: RankRow[];
  nodes: NodeRow[];
  shards: ShardTable;
  profile: ProfileTable;
  tensorboard: TensorBoardItem[];
  logs: LogSize[];
  external: ExternalView[];
}

/** The run's state, elapsed and remaining time (empty when unknown). */
export interface RunStatus {
  state: RunState;
  label: string;
  tone: Tone;
  elapsed: string;
  remaining: string;
  over: boolean;
  stopping: Stopping;
}

/** A folder of event files. */
export interface TensorBoardItem {
  /** its place among all folders of the run, as in the server's route. */
  place: number;
  /** its path. */
  folder: string;
  /** the command for a terminal that shows it. */
  command: string;
}
