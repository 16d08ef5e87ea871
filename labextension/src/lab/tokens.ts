import { Token } from '@lumino/coreutils';
import type { ISignal } from '@lumino/signaling';

import type { RunLine } from '../generated/report';
import type { RunSummary } from '../generated/server';
import type { IRunsState } from './runsstate';

/** What a person has chosen in the settings editor. */
export interface ISettings {
  /** The line that is put before a cell which is to run on several GPUs. */
  readonly line: string;
  /** Whether to say that a run is over when its notebook is out of sight. */
  readonly notifications: boolean;
}

export const ISettings = new Token<ISettings>(
  'nbmgpu:ISettings',
  'What a person has chosen in the settings of nbmgpu.'
);

/** All runs and devices as the server tells them, and what can be done with a run. */
export interface IRunsModel {
  readonly state: IRunsState;
  /** Emitted whenever the ledger is another. */
  readonly changed: ISignal<IRunsModel, IRunsState>;
  /** Emitted for each run that has come to its end. */
  readonly ended: ISignal<IRunsModel, RunLine>;
  /** Look for runs older than those in the ledger. */
  loadOlder(): Promise<void>;
  /** What stays of a run that is over in its notebook. */
  summary(id: string): Promise<RunSummary>;
  /** Stop a run; with `force` at once, so that nothing comes back. */
  stop(id: string, force: boolean): Promise<void>;
  /** Remove the folder of a run that is over. */
  remove(id: string): Promise<void>;
}

export const IRunsModel = new Token<IRunsModel>(
  'nbmgpu:IRunsModel',
  'All runs of nbmgpu and the devices of the machine, as the server tells them.'
);
