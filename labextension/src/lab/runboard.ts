import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';

import { RunsServer } from '../server';
import { RunBoard } from './board';
import { IRunBoard } from './tokens';

/** Hears what the server says of runs and devices; the other plugins ask this one. */
export const runBoardPlugin: JupyterFrontEndPlugin<IRunBoard> = {
  id: 'nbmgpu:run-board',
  description: 'All runs and devices, as the server tells them.',
  autoStart: true,
  provides: IRunBoard,
  activate: (app: JupyterFrontEnd): IRunBoard =>
    new RunBoard(new RunsServer(app.serviceManager.serverSettings))
};
