import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { IDefaultFileBrowser } from '@jupyterlab/filebrowser';
import { INotebookTracker } from '@jupyterlab/notebook';
import {
  ITranslator,
  nullTranslator,
  type TranslationBundle
} from '@jupyterlab/translation';
import {
  closeIcon,
  editIcon,
  folderIcon,
  html5Icon,
  linkIcon,
  notebookIcon,
  pythonIcon,
  stopIcon,
  type LabIcon
} from '@jupyterlab/ui-components';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import type { RunLine } from '../generated/report';
import { RunActions } from './actions';
import { CommandIDs } from './commandids';
import { showError, showMessage } from './showmessage';
import { IRunsModel } from './tokens';

/** The JSON schema of the arguments of commands about a run. */
export const RUN_ARGS = {
  type: 'object',
  properties: {
    id: {
      type: 'string',
      description:
        'The id of the run; by default, the newest run to which the command applies.'
    },
    ofNotebook: {
      type: 'boolean',
      description: 'Whether only runs of the current notebook count.'
    }
  }
} as const;

/** A command about a run. */
interface IRunCommand {
  readonly id: string;
  readonly label: string;
  readonly icon: LabIcon;
  readonly action: (run: RunLine) => unknown;
  readonly appliesTo?: (run: RunLine) => boolean;
}

function runCommands(actions: RunActions, trans: TranslationBundle): IRunCommand[] {
  return [
    {
      id: CommandIDs.stopRun,
      label: trans.__('Stop the Run'),
      icon: stopIcon,
      action: run => actions.stop(run),
      appliesTo: run => !run.status.over
    },
    {
      id: CommandIDs.attachRun,
      label: trans.__('Follow the Run in a Notebook'),
      icon: linkIcon,
      action: run => actions.follow(run)
    },
    {
      id: CommandIDs.revealNotebook,
      label: trans.__('Show the Notebook of the Run'),
      icon: notebookIcon,
      action: run => actions.revealNotebook(run),
      appliesTo: run => !!run.notebook
    },
    {
      id: CommandIDs.openFolder,
      label: trans.__('Open the Folder of the Run'),
      icon: folderIcon,
      action: run => actions.openFolder(actions.folderOf(run))
    },
    {
      id: CommandIDs.labelRun,
      label: trans.__('Name and Tag the Run…'),
      icon: editIcon,
      action: run => actions.label(run)
    },
    {
      id: CommandIDs.exportRun,
      label: trans.__('Export the Run as a Script…'),
      icon: pythonIcon,
      action: run => actions.export(run, { report: false })
    },
    {
      id: CommandIDs.reportRun,
      label: trans.__('Save a Report of the Run…'),
      icon: html5Icon,
      action: run => actions.export(run, { report: true })
    },
    {
      id: CommandIDs.deleteRun,
      label: trans.__('Delete the Run…'),
      icon: closeIcon,
      action: run => actions.remove(run),
      appliesTo: run => run.status.over
    }
  ];
}

/** Commands about a run: the one in the arguments, or the newest to which they apply. */
export const runCommandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbmgpu:run-commands',
  description:
    'Commands about a run: stop, follow, notebook, folder, name, export, delete.',
  autoStart: true,
  requires: [IRunsModel],
  optional: [
    ICommandPalette,
    IDefaultFileBrowser,
    IDocumentManager,
    INotebookTracker,
    ITranslator
  ],
  activate: (
    { commands, shell }: JupyterFrontEnd,
    model: IRunsModel,
    palette: ICommandPalette | null,
    files: IDefaultFileBrowser | null,
    documents: IDocumentManager | null,
    notebooks: INotebookTracker | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('nbmgpu');
    const actions = new RunActions(model, { shell, files, documents, notebooks, trans });
    const runCommandList = runCommands(actions, trans);
    for (const { id: command, label, icon, action, appliesTo } of runCommandList) {
      const chosen = (args: ReadonlyPartialJSONObject): RunLine | undefined =>
        model.state.runs.find(
          run =>
            (!args.id || run.id === args.id) &&
            (!args.ofNotebook || actions.isOfCurrentNotebook(run)) &&
            (appliesTo?.(run) ?? true)
        );
      commands.addCommand(command, {
        label,
        icon: args => (args.isPalette ? undefined : icon),
        describedBy: { args: RUN_ARGS },
        isEnabled: args => !!chosen(args),
        isVisible: args => !!chosen(args),
        execute: async args => {
          const run = chosen(args);
          if (!run) {
            const message = trans.__(
              'Run %1 is not among the newest runs',
              args.id as string
            );
            return void (args.id && showMessage(message, 'warning'));
          }
          try {
            await action(run);
          } catch (reason) {
            showError(reason);
          }
        }
      });
      palette?.addItem({ command, category: trans.__('mGPU') });
    }
    let known = '';
    model.changed.connect((_, { runs }) => {
      const states = runs.map(run => `${run.id} ${run.status.over}`).join();
      if (states !== known) {
        known = states;
        runCommandList.forEach(({ id }) => commands.notifyCommandChanged(id));
      }
    });
  }
};
