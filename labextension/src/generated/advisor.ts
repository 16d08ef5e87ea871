// Generated from Python by tools/typescript_types.py. Do not edit.

export type Fit = 'fits' | 'tight' | 'no' | 'unknown';

/** Memory of one kind on one rank, in bytes. */
export interface Part {
  kind: Kind;
  low: number;
  high: number;
}

/** The estimate for one strategy. */
export interface Estimate {
  /** name of the strategy, with an option where the option makes a row of its own. */
  name: string;
  /** one line that describes the strategy. */
  summary: string;
  /** memory of one rank by kind; empty if unknown. */
  parts: Part[];
  /** bounds of the total memory of one rank, in bytes. */
  low: number;
  /** bounds of the total memory of one rank, in bytes. */
  high: number;
  /** `fits` with a reserve, `tight` if it may fit, `no`, or `unknown`. */
  fits: Fit;
  /** why the strategy is unavailable or does not fit; usually empty. */
  problem: string;
  /** speed relative to `ddp` on the same ranks. */
  speed: Speed;
  /** the drawbacks of the strategy, as text. */
  costs: string;
  /** the source of the memory estimate. */
  source: string;
  /** the `%%mgpu` line that selects the strategy; empty if it is unavailable. */
  line: string;
  /** what a node sends to others; None on one machine, or if unknown. */
  traffic: NodeTraffic | null;
}

/** The recommended strategy, and the estimates that the recommendation is based on. */
export interface Advice {
  /** one line that describes the model. */
  model: string;
  /** description of the devices, such as `2 CPU ranks`. */
  devices: string;
  /** number of ranks. */
  ranks: number;
  /** free memory for each rank in bytes; None if unknown. */
  free: number | null;
  /** one estimate for each strategy. */
  rows: Estimate[];
  /** name of the recommended row; empty if nothing fits. */
  recommended: string;
  /** the reason for the recommendation, in one sentence. */
  reason: string;
  /** the `%%mgpu` line to put above the cell; empty if nothing fits. */
  line: string;
  /**
   * largest global batch, in samples, that should fit; None if unknown or not limited by
   * memory.
   */
  largest_batch: number | null;
  /** assumptions, and what the estimates leave out. */
  notes: string[];
}

/** What a node sends to other nodes in an optimizer step. */
export interface NodeTraffic {
  /** bytes, of all ranks of a node together. */
  sent: number;
  /** how long the link takes for them; None if its speed is not known. */
  seconds: number | null;
  /** both as text. */
  text: string;
}

/**
 * Settings besides the strategy, named as in `RunOptions`; `""` is the cell's default.
 */
export interface Controls {
  gpus: number;
  precision: '' | 'bf16' | 'fp16' | 'fp32';
  accumulate: number;
  batch: 'global' | 'per-rank';
  checkpointing: boolean;
  nodes: number;
  /** Gbit/s that a node sends to others; 0 if unknown. */
  link: number;
  /** free memory of each GPU of the nodes, as text; `""` if unknown. */
  memory: string;
}

/** Everything that a picker displays. */
export interface PickerState {
  /** the names of the model, optimizer and loader, or why there is no model. */
  subject: string;
  /** label of the devices: `GPUs` or `CPU ranks`. */
  devices: string;
  /** the device counts to choose from. */
  counts: number[];
  /** the current settings. */
  controls: Controls;
  /** the strategy on the cell's own line; empty if there is none. */
  selected: string;
  /** the estimates and the recommendation; null if there is a problem. */
  advice: Advice | null;
  /** labels of the kinds of memory. */
  kinds: Record<string, string>;
  /** why the settings are invalid, and how to fix them; usually empty. */
  problem: string;
  /** whether ranks are on nodes of a cluster, each with that many devices. */
  elsewhere: boolean;
}

/** Speed relative to `ddp` on the same ranks. */
export interface Speed {
  /** bounds; None if unknown. */
  low: number | null;
  /** bounds; None if unknown. */
  high: number | null;
  /** the bounds as text. */
  text: string;
  /** what the bounds are based on. */
  reason: string;
}

export type Kind =
  | 'parameters'
  | 'gradients'
  | 'optimizer'
  | 'activations'
  | 'buffers'
  | 'extra';
