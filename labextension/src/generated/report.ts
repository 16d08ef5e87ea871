// Made from Python by tools/typescript_types.py; a change here is lost.
import type { RunState } from './runs';

/**
 * One metric, drawn.
 *
 * `points` is base64 of little-endian float32 pairs of step and value, at most `POINTS`:
 * of each stretch of steps the lowest and the highest. `means` has the mean of each
 * stretch, for smoothing; it is empty where `points` has every step.
 */
export interface CurveLine {
  name: string;
  last: string;
  sound: boolean;
  steps: number;
  points: string;
  means: string;
}

/** Asks for the steps from `first` to `last` of one metric, as if they were all. */
export interface CurveRequest {
  name: string;
  first: number;
  last: number;
}

/**
 * The metrics: the loss first, the others as they came; `hidden` counts those left out.
 */
export interface Curves {
  shown: CurveLine[];
  hidden: number;
}

/**
 * How fast a run is.
 *
 * `rates` are samples (and tokens) per second. `step_times` has, in seconds, the whole
 * step and each rank's own part of it, which is what it does without waiting for others.
 * `slowest` is the straggler, -1 when there is none, and `words` says what is known of
 * it.
 */
export interface Throughput {
  rate: string;
  step_time: string;
  slowest: number;
  words: string;
  rates: CurveLine[];
  step_times: CurveLine[];
}

/** A line of the cell; `failing` where the exception passed last. */
export interface CellLine {
  number: number;
  text: string;
  failing: boolean;
}

/**
 * A rank besides the one that failed first: how it ended, and its own exception if any.
 */
export interface OtherRank {
  rank: number;
  word: string;
  what: string;
  traceback: string;
}

/**
 * Why a run failed.
 *
 * `who` is the rank, or empty; `number` and `line` are the cell's own line (0 when
 * unknown), and `context` has it among its neighbours. `why` is the likely cause and
 * `remedy` what to try, as far as they are known. Tracebacks are ANSI coloured.
 */
export interface Cause {
  who: string;
  what: string;
  number: number;
  line: string;
  context: CellLine[];
  why: string;
  remedy: string;
  traceback: string;
  others: OtherRank[];
}

/** How much a rank has written; `size` is in bytes and grows with every character. */
export interface LogSize {
  lines: number;
  size: number;
}

/**
 * Asks for `count` lines from `first` on, or for the last ones when that is negative.
 *
 * `rank` is -1 for all ranks. With `search`, only lines that contain it count; case does
 * not matter.
 */
export interface LogRequest {
  rank: number;
  first: number;
  count: number;
  search: string;
}

/**
 * A line: of which rank, its index there and in the whole list, and whether it is stderr.
 *
 * `text` has no control characters but ANSI colours.
 */
export interface LogLine {
  rank: number;
  number: number;
  index: number;
  text: string;
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

/** A progress bar: what is left and right of it, and how full it is (-1 when unknown). */
export interface Bar {
  key: string;
  label: string;
  count: string;
  fraction: number;
}

/** How much of something is used: in words, and as a fraction (-1 when unknown). */
export interface Meter {
  text: string;
  fraction: number;
}

/**
 * A rank in one line.
 *
 * `gpu` and `gpu_memory` are None where there is no GPU. `slowest` marks the straggler;
 * `warning` is a sentence, or empty.
 */
export interface RankRow {
  rank: number;
  device: string;
  word: string;
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

/** A run in a list. */
export interface RunLine {
  id: string;
  /** starting, running, finished, failed, stopped, timeout or lost. */
  state: RunState;
  /** the state for people: `stopping` once somebody has asked for it. */
  word: string;
  tone: Tone;
  strategy: string;
  world_size: number;
  devices: string[];
  /** strategy, world size and devices in short. */
  headline: string;
  /** path of the notebook, as the kernel knew it; may be empty. */
  notebook: string;
  /** in seconds since the epoch. */
  created: number;
  /** in seconds, to now or to the end. */
  duration: number;
  /** whether no process of the run is left. */
  over: boolean;
  /** the process of the kernel that started it. */
  kernel_pid: number;
  /** the process of the kernel that started it. */
  kernel_create_time: number;
  /** whether that kernel still runs. */
  kernel_alive: boolean;
  /**
   * how far the run is, or its epoch if no more is known, from 0 to 1; -1 when unknown.
   */
  progress: number;
  /** how long it may go on, in words; empty when unknown. */
  remaining: string;
  /** the name of the curve, empty where there is none. */
  metric: string;
  /** at most 60 points `[step, value]` of it. */
  curve: [number, number][];
  /** the curve's newest value, for people. */
  last: string;
  /** why it did not end well, in a sentence, or empty. */
  failure: string;
}

/** Whether somebody has asked the run to stop, and how. */
export type Stopping = '' | 'asked' | 'forced';

/** What was asked; `created` in seconds since the epoch. */
export interface About {
  id: string;
  headline: string;
  strategy: string;
  world_size: number;
  devices: string;
  batch: string;
  folder: string;
  notebook: string;
  created: number;
}

/** The run's state, and how long it has gone on and will go on (empty when unknown). */
export interface RunStatus {
  state: RunState;
  word: string;
  tone: Tone;
  elapsed: string;
  remaining: string;
  over: boolean;
  stopping: Stopping;
}

/** All there is to show of a run. */
export interface Parts {
  about: About;
  status: RunStatus;
  notices: string[];
  failure: Cause | null;
  progress: Bar[];
  curves: Curves;
  throughput: Throughput;
  ranks: RankRow[];
  logs: LogSize[];
}

/**
 * How something should strike the eye: not yet, at work, done well, failed, ended without
 * fault.
 */
export type Tone = 'idle' | 'busy' | 'good' | 'bad' | 'calm';
