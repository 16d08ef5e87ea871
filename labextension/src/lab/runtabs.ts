import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import {
  CommandToolbarButton,
  ICommandPalette,
  MainAreaWidget,
  WidgetTracker
} from '@jupyterlab/apputils';
import { IDefaultFileBrowser } from '@jupyterlab/filebrowser';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { RunsServer } from '../server';
import { RunActions } from './actions';
import { CommandIDs } from './commandids';
import { mgpuIcon } from './icons';
import { addTab } from './maintab';
import { RUN_ARGS } from './runcommands';
import { RunTab } from './runtab';
import { showError } from './showmessage';
import { languageOf } from './times';
import { IRunsModel } from './tokens';

/** The commands in the toolbar of a run's tab. */
const TAB_COMMANDS = [
  CommandIDs.labelRun,
  CommandIDs.revealNotebook,
  CommandIDs.openFolder,
  CommandIDs.exportRun,
  CommandIDs.reportRun
];

/** Tabs that show runs, independently of their kernels. */
export const runTabsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbmgpu:run-tabs',
  description: 'Opens runs in tabs of the main area.',
  autoStart: true,
  requires: [IRunsModel],
  optional: [
    ICommandPalette,
    IDefaultFileBrowser,
    ILabShell,
    ILayoutRestorer,
    ITranslator
  ],
  activate: (
    { commands, serviceManager, shell }: JupyterFrontEnd,
    model: IRunsModel,
    palette: ICommandPalette | null,
    files: IDefaultFileBrowser | null,
    labShell: ILabShell | null,
    restorer: ILayoutRestorer | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('nbmgpu');
    const language = languageOf(translator);
    const tracker = new WidgetTracker<MainAreaWidget<RunTab>>({
      namespace: 'nbmgpu-runs'
    });
    const server = new RunsServer(serviceManager.serverSettings);
    const context = { shell, files, documents: null, notebooks: null, trans };
    const actions = new RunActions(model, context);
    const tabActions = {
      openFolder: (folder: string) => void actions.openFolder(folder).catch(showError),
      showError
    };

    const open = async (id: string, title = ''): Promise<MainAreaWidget<RunTab>> => {
      const known = tracker.find(tab => tab.content.runId === id);
      if (known) {
        return known;
      }
      const content = new RunTab(id, server, tabActions, trans, language, title);
      const tab = new MainAreaWidget({ content });
      tab.id = `nbmgpu-run-${id}`;
      for (const command of TAB_COMMANDS) {
        const button = new CommandToolbarButton({
          commands,
          id: command,
          args: { id },
          label: '' // the icon alone: its title is the command's label
        });
        tab.toolbar.addItem(command, button);
      }
      addTab(tab, shell, labShell);
      await tracker.add(tab);
      content.title.changed.connect(() => void tracker.save(tab));
      return tab;
    };

    commands.addCommand(CommandIDs.openRun, {
      label: trans.__('Open the Newest Run'),
      caption: trans.__('Open a run in a tab, with its curves, ranks and logs'),
      icon: args => (args.isPalette ? undefined : mgpuIcon),
      describedBy: { args: RUN_ARGS },
      isVisible: args => !!args.id || model.state.runs.length > 0,
      execute: async args => {
        const id = (args.id as string | undefined) ?? model.state.runs[0]?.id;
        if (!id) {
          return;
        }
        const tab = await open(id, args.title as string | undefined);
        shell.activateById(tab.id);
        return tab;
      }
    });
    palette?.addItem({ command: CommandIDs.openRun, category: trans.__('mGPU') });
    void restorer?.restore(tracker, {
      command: CommandIDs.openRun,
      args: ({ content }) => ({ id: content.runId, title: content.title.label }),
      name: tab => tab.content.runId
    });
  }
};
