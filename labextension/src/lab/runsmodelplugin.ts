import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';

import { RunsServer } from '../server';
import { RunsModel } from './runsmodel';
import { IRunsModel } from './tokens';

/** Provides the state of runs and devices to the other plugins. */
export const runsModelPlugin: JupyterFrontEndPlugin<IRunsModel> = {
  id: 'nbmgpu:runs-model',
  description: 'Provides the state of all runs and devices.',
  autoStart: true,
  provides: IRunsModel,
  activate: (app: JupyterFrontEnd): IRunsModel =>
    new RunsModel(new RunsServer(app.serviceManager.serverSettings))
};
