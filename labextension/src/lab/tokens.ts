import { Token } from '@lumino/coreutils';
import type { ISignal } from '@lumino/signaling';

import type { LogPage, LogRequest, RunLine } from '../generated/report';
import type { RunLabels } from '../generated/runs';
import type { DiskUsage, RunSummary } from '../generated/server';
import type { IRunsState } from './runsstate';

/** The user settings. */
export interface ISettings {
  /** The `%%mgpu` line that the insert command writes. */
  readonly line: string;
  /** Whether to notify when a run ends while its notebook is not visible. */
  readonly notifications: boolean;
}

export const ISettings = new Token<ISettings>(
  'nbmgpu:ISettings',
  'The user settings of nbmgpu.'
);

/** All runs and devices that the server reports, and the actions on runs. */
export interface IRunsModel {
  readonly state: IRunsState;
  /** Emitted when the state has changed. */
  readonly changed: ISignal<IRunsModel, IRunsState>;
  /** Emitted for each run that has ended. */
  readonly ended: ISignal<IRunsModel, RunLine>;
  /** Load runs older than those in the state. */
  loadOlder(): Promise<void>;
  /** What the folders of all runs take on the disk. */
  diskUsage(): Promise<DiskUsage>;
  /** The summary of a finished run. */
  summary(id: string): Promise<RunSummary>;
  /** A page of the logs of a run. */
  logs(id: string, request: LogRequest): Promise<LogPage>;
  /** Stop a run; with `force`, kill it without writing results back. */
  stop(id: string, force: boolean): Promise<void>;
  /** Replace the name, the tags and the note of a run. */
  setLabels(id: string, labels: RunLabels): Promise<void>;
  /** Delete the folder of a finished run. */
  remove(id: string): Promise<void>;
}

export const IRunsModel = new Token<IRunsModel>(
  'nbmgpu:IRunsModel',
  'All runs of nbmgpu and the devices of the machine.'
);
