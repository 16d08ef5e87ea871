import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';

import { RunsServer } from '../server';
import { RunsModel } from './runsmodel';
import { IRunsModel } from './tokens';

/** Hears what the server says of runs and devices; the other plugins ask this one. */
export const runsModelPlugin: JupyterFrontEndPlugin<IRunsModel> = {
  id: 'nbmgpu:runs-model',
  description: 'All runs and devices, as the server tells them.',
  autoStart: true,
  provides: IRunsModel,
  activate: (app: JupyterFrontEnd): IRunsModel =>
    new RunsModel(new RunsServer(app.serviceManager.serverSettings))
};
