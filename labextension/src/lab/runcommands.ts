import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, Notification } from '@jupyterlab/apputils';
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
  folderIcon,
  linkIcon,
  notebookIcon,
  stopIcon,
  type LabIcon
} from '@jupyterlab/ui-components';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import type { RunLine } from '../generated/report';
import { errorText } from '../view/errors';
import { RunActions } from './actions';
import { CommandIDs } from './commandids';
import { IRunsModel } from './tokens';

/** The arguments of commands about a run, as JupyterLab wants them described. */
export const RUN_ARGS = {
  type: 'object',
  properties: {
    id: {
      type: 'string',
      description: 'The id of the run; without it, the newest run that the command fits.'
    }
  }
} as const;

/** A command about a run. */
interface IRunCommand {
  readonly id: string;
  readonly label: string;
  readonly icon: LabIcon;
  readonly act: (run: RunLine) => unknown;
  readonly fits?: (run: RunLine) => boolean;
}

function runCommands(actions: RunActions, trans: TranslationBundle): IRunCommand[] {
  return [
    {
      id: CommandIDs.stopRun,
      label: trans.__('Stop the Run'),
      icon: stopIcon,
      act: run => actions.stop(run),
      fits: run => !run.over
    },
    {
      id: CommandIDs.attachRun,
      label: trans.__('Follow the Run in a Notebook'),
      icon: linkIcon,
      act: run => actions.follow(run)
    },
    {
      id: CommandIDs.revealNotebook,
      label: trans.__('Show the Notebook of the Run'),
      icon: notebookIcon,
      act: run => actions.revealNotebook(run),
      fits: run => !!run.notebook
    },
    {
      id: CommandIDs.openFolder,
      label: trans.__('Open the Folder of the Run'),
      icon: folderIcon,
      act: run => actions.openFolder(actions.folderOf(run))
    },
    {
      id: CommandIDs.deleteRun,
      label: trans.__('Delete the Run…'),
      icon: closeIcon,
      act: run => actions.remove(run),
      fits: run => run.over
    }
  ];
}

/** Commands about a run: the one that the arguments name, or the newest that fits. */
export const runCommandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbmgpu:run-commands',
  description: 'Commands about a run: stop, follow, notebook, folder, delete.',
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
    const added = runCommands(actions, trans);
    for (const { id: command, label, icon, act, fits } of added) {
      const chosen = ({ id }: ReadonlyPartialJSONObject): RunLine | undefined =>
        model.state.runs.find(run => (!id || run.id === id) && (fits?.(run) ?? true));
      commands.addCommand(command, {
        label,
        icon: args => (args.isPalette ? undefined : icon),
        describedBy: { args: RUN_ARGS },
        isEnabled: args => !!chosen(args),
        isVisible: args => !!chosen(args),
        execute: async args => {
          const run = chosen(args);
          if (!run) {
            const words = trans.__(
              'Run %1 is not among the newest runs',
              args.id as string
            );
            return void (args.id && Notification.warning(words));
          }
          try {
            await act(run);
          } catch (reason) {
            Notification.error(errorText(reason));
          }
        }
      });
      palette?.addItem({ command, category: trans.__('mGPU') });
    }
    let known = '';
    model.changed.connect((_, { runs }) => {
      const states = runs.map(run => `${run.id} ${run.over}`).join();
      if (states !== known) {
        known = states;
        added.forEach(({ id }) => commands.notifyCommandChanged(id));
      }
    });
  }
};
