// Made from Python by tools/typescript_types.py; a change here is lost.

export type Fit = 'fits' | 'tight' | 'no' | 'unknown';

/** What one kind of memory takes on a rank; bytes. */
export interface Part {
  kind: Kind;
  low: number;
  high: number;
}

/** One strategy for one model. */
export interface Estimate {
  /** the strategy, with an option where that makes it another. */
  name: string;
  /** what it is, in one line. */
  summary: string;
  /** memory of a rank by kind; empty where it is unknown. */
  parts: Part[];
  /** all of them together. */
  low: number;
  /** all of them together. */
  high: number;
  /** `fits` with a reserve, `tight` if perhaps, `no`, or `unknown`. */
  fits: Fit;
  /** why it cannot be had, or what the judgement leaves out; mostly empty. */
  why: string;
  /** relative to `ddp` on the same ranks. */
  speed: Speed;
  /** what it costs, in words. */
  costs: string;
  /** where the numbers come from. */
  source: string;
  /** the `%%mgpu` line that asks for it; empty if it cannot be had. */
  line: string;
}

/** Which strategy to take, and all that it was chosen from. */
export interface Advice {
  /** what was asked about, in one line. */
  model: string;
  /** the ranks, in words. */
  where: string;
  /** how many. */
  ranks: number;
  /** bytes free for each; None where nobody knows. */
  free: number | null;
  /** one for each strategy. */
  rows: Estimate[];
  /** the name of the row to take. */
  recommended: string;
  /** why, in one sentence. */
  reason: string;
  /** the `%%mgpu` line to put above the cell; empty if nothing fits. */
  line: string;
  /** samples of all ranks together that surely fit; None if unknown or no limit. */
  largest_batch: number | null;
  /** what was assumed, left out, or is missing. */
  notes: string[];
}

export type Kind =
  | 'parameters'
  | 'gradients'
  | 'optimizer'
  | 'activations'
  | 'buffers'
  | 'extra';

/**
 * What can be set beside the strategy, named as in `RunOptions`; `""`: as the cell says.
 */
export interface Controls {
  gpus: number;
  precision: '' | 'bf16' | 'fp16' | 'fp32';
  accumulate: number;
  batch: 'global' | 'per-rank';
  checkpointing: boolean;
}

/** All that a picker shows. */
export interface PickerState {
  /** the names of what was looked at, or the reason why nothing was. */
  subject: string;
  /** what ranks are called here: `GPUs` or `CPU ranks`. */
  devices: string;
  /** the numbers of them that are offered. */
  counts: number[];
  /** what is set. */
  controls: Controls;
  /** the strategy that the cell's own line names; empty if there is none. */
  selected: string;
  /** the rows and the recommendation; null if there is a problem. */
  advice: Advice | null;
  /** the kinds of memory, in words. */
  kinds: Record<string, string>;
  /** what cannot be had of what was set, and the way out; mostly empty. */
  problem: string;
}

/** Speed relative to `ddp` on the same ranks, in words as well, and the reason. */
export interface Speed {
  low: number | null;
  high: number | null;
  words: string;
  reason: string;
}
