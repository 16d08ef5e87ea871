// Generated from Python by tools/typescript_types.py. Do not edit.
import type { RunLine } from './report';

export type DeviceKind = 'cpu' | 'gpu';

/** A device and its current usage. */
export interface DeviceUsage {
  /** the name in runs: `cpu`, `cuda:0`. */
  name: string;
  /** the CPU with its memory, or a GPU. */
  kind: DeviceKind;
  /** the display name: `NVIDIA H100 80GB HBM3`, `8 cores`. */
  label: string;
  /** utilization from 0 to 1, -1 if unknown. */
  use: number;
  /** in bytes, -1 if unknown. */
  memory_used: number;
  /** in bytes, -1 if unknown. */
  memory_total: number;
}

/** The current state of the machine. */
export interface ServerStatus {
  /** the version of nbmgpu in the server's environment. */
  version: string;
  /** all devices. */
  devices: DeviceUsage[];
  /** the folder of all runs. */
  runs_root: string;
  /** the root folder of the server's contents manager. */
  server_root: string;
  /** configuration problems, in sentences. */
  problems: string[];
}

/** The summary of a finished run, as HTML without scripts and as text. */
export interface RunSummary {
  html: string;
  text: string;
}

/** Runs, newest first; `more` is whether older ones exist. */
export interface RunList {
  runs: RunLine[];
  more: boolean;
}

/** What all runs take on the disk, in bytes, and how many they are. */
export interface DiskUsage {
  runs: number;
  nbytes: number;
}

/** A message of the stream: the changes since the last message, at most once a second. */
export interface Update {
  /** all devices. */
  devices: DeviceUsage[];
  /** the entries that changed; in the first message, the newest runs. */
  runs: RunLine[];
  /** ids of runs whose folders were removed. */
  gone: string[];
  /** whether there are older runs than those sent. */
  more: boolean;
  /** configuration problems, in sentences. */
  problems: string[];
}

/**
 * A message from the page to a stream: nothing is read or sent while the page is hidden.
 */
export interface Visibility {
  visible: boolean;
}

/** Whether to interrupt a run, so that its results are written back, or to kill it. */
export interface StopRequest {
  force: boolean;
}

/**
 * The `%%mgpu` line of a cell, or an empty string, and the `Controls` that were changed.
 */
export interface PickRequest {
  line: string;
  controls: Record<string, unknown>;
}

/** A strategy, described for people. */
export interface StrategyInfo {
  /** what `--strategy` takes. */
  name: string;
  /** one sentence. */
  summary: string;
  /** its requirements, what it saves, and its cost. */
  needs: string;
  /** its requirements, what it saves, and its cost. */
  saves: string;
  /** its requirements, what it saves, and its cost. */
  costs: string;
  /** the flags of `%%mgpu` that it supports. */
  options: string[];
  /** whether each rank processes a shard of every global batch. */
  shards_data: boolean;
  /** whether one process uses all devices. */
  in_one_process: boolean;
  /** packages missing in the server's environment, as a sentence; usually empty. */
  missing: string;
}

/**
 * A flag of `%%mgpu`: its spelling, its help text, and values to suggest.
 *
 * A flag without `metavar` is a switch.
 */
export interface FlagHelp {
  name: string;
  short: string;
  metavar: string;
  help: string;
  values: string[];
}

/** The strategies and flags of the `%%mgpu` line. */
export interface Catalogue {
  strategies: StrategyInfo[];
  flags: FlagHelp[];
}

/** The body of an error response; `hint` says what to do and may be empty. */
export interface ErrorBody {
  message: string;
  hint: string;
}

/** Close codes of streams that have ended; after any other code, clients reconnect. */
export const CloseCode = {
  OVER: 4000,
  GONE: 4404
} as const;
