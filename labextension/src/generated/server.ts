// Made from Python by tools/typescript_types.py; a change here is lost.
import type { RunLine } from './report';

export type DeviceKind = 'cpu' | 'gpu';

/** A device and how busy it is at this moment. */
export interface DeviceUse {
  /** what a run calls it: `cpu`, `cuda:0`. */
  name: string;
  /** whether it is the processor with its memory, or a GPU. */
  kind: DeviceKind;
  /** what people call it: `NVIDIA H100 80GB HBM3`, `8 cores`. */
  label: string;
  /** from 0 to 1, -1 when unknown. */
  use: number;
  /** in bytes, -1 when unknown. */
  memory_used: number;
  /** in bytes, -1 when unknown. */
  memory_total: number;
}

/** The machine at this moment. */
export interface ServerStatus {
  /** of nbmgpu in the server's environment. */
  version: string;
  /** all that runs could be on. */
  devices: DeviceUse[];
  /** the folder of all runs. */
  runs_root: string;
  /** the folder whose files the server shows. */
  server_root: string;
  /** what is missing or in the way, in sentences. */
  problems: string[];
}

/** What stays of a run in a notebook: HTML without a script, and text. */
export interface RunSummary {
  html: string;
  text: string;
}

/** Runs, newest first; `more` says whether there are older ones. */
export interface RunList {
  runs: RunLine[];
  more: boolean;
}

/** What the stream says once a second. */
export interface News {
  /** all of them. */
  devices: DeviceUse[];
  /** the lines that have changed; with the first word, the newest runs. */
  runs: RunLine[];
  /** ids of runs whose folders were removed. */
  gone: string[];
  /** whether there are older runs than those told. */
  more: boolean;
  /** what is missing or in the way, in sentences. */
  problems: string[];
}

/**
 * What a page tells a stream: while nobody looks, nothing is sent and nothing is read.
 */
export interface Visibility {
  visible: boolean;
}

/** How to stop a run: gently, so that results come back, or by force. */
export interface StopRequest {
  force: boolean;
}

/** The `%%mgpu` line that a cell has, or nothing, and those `Controls` that were set. */
export interface PickRequest {
  line: string;
  controls: Record<string, unknown>;
}

/** A strategy as people choose it. */
export interface Choice {
  /** what `--strategy` takes. */
  name: string;
  /** one line for people. */
  summary: string;
  /** what it asks for, spares and takes. */
  needs: string;
  /** what it asks for, spares and takes. */
  saves: string;
  /** what it asks for, spares and takes. */
  costs: string;
  /** the flags of `%%mgpu` that it can have. */
  options: string[];
  /** whether each rank takes a share of every global batch. */
  shards_data: boolean;
  /** whether one rank holds all devices. */
  in_one_process: boolean;
  /** what it lacks where the server runs, as a sentence; mostly empty. */
  missing: string;
}

/**
 * A flag of `%%mgpu`: how it is written, what it does, and values to propose.
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

/** What one can choose on the first line of a cell. */
export interface Catalogue {
  strategies: Choice[];
  flags: FlagHelp[];
}

/** Why something was not done, and what to do; `hint` may be empty. */
export interface Problem {
  message: string;
  hint: string;
}

/** How the server closes a stream for good; after any other code a page comes back. */
export const CloseCode = {
  OVER: 4000,
  GONE: 4404
} as const;
