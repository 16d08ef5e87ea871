import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IStateDB } from '@jupyterlab/statedb';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs } from '../commandids';
import { mgpuIcon } from '../icons';
import { languageOf } from '../times';
import { IRunsModel } from '../tokens';
import { RunChoice } from './choice';
import { Sidebar } from './panel';

/** The right sidebar with devices and runs. */
export const sidebarPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbmgpu:sidebar',
  description: 'Shows devices and runs in the right sidebar.',
  autoStart: true,
  requires: [IRunsModel],
  optional: [ICommandPalette, ILayoutRestorer, IStateDB, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IRunsModel,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    database: IStateDB | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('nbmgpu');
    const { commands, shell } = app;
    const choice = new RunChoice(database);
    const sidebar = new Sidebar(model, commands, trans, languageOf(translator), choice);
    shell.add(sidebar, 'right', { rank: 500, type: 'mGPU' });
    restorer?.add(sidebar, sidebar.id);

    commands.addCommand(CommandIDs.showRuns, {
      label: trans.__('mGPU Devices and Runs'),
      caption: trans.__('Show the devices of this machine and all runs in the sidebar'),
      icon: args => (args.isPalette ? undefined : mgpuIcon),
      describedBy: { args: { type: 'object', properties: {} } },
      execute: () => shell.activateById(sidebar.id)
    });
    palette?.addItem({ command: CommandIDs.showRuns, category: trans.__('mGPU') });
  }
};
