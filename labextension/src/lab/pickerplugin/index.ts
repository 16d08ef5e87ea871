import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, ICommandPalette } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { RunsServer } from '../../server';
import { CommandIDs } from '../commandids';
import { mgpuIcon } from '../icons';
import { hasLine, withLine } from '../../picker';
import { loadInNotebook } from '../loadextension';
import { showError } from '../showmessage';
import { ISettings } from '../tokens';
import { PickerBody } from './body';
import { CellPickerSource, describe } from './source';

const NO_ARGS = { args: { type: 'object', properties: {} } } as const;

/** Chooses a strategy for the active cell, and writes the `%%mgpu` line. */
export const pickerPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbmgpu:picker',
  description: 'Chooses a strategy for the active cell.',
  autoStart: true,
  requires: [ISettings, INotebookTracker],
  optional: [ICommandPalette, ITranslator],
  activate: (
    { commands, serviceManager }: JupyterFrontEnd,
    settings: ISettings,
    notebooks: INotebookTracker,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('nbmgpu');
    const server = new RunsServer(serviceManager.serverSettings);

    const codeCell = () => {
      const cell = notebooks.activeCell;
      return cell?.model.type === 'code' ? cell.model.sharedModel : null;
    };
    const addToCell = (
      cell: NonNullable<ReturnType<typeof codeCell>>,
      line: string
    ): void => {
      cell.setSource(withLine(cell.source, line));
      const panel = notebooks.currentWidget;
      if (panel) {
        loadInNotebook(panel);
      }
    };
    const isVisible = (): boolean => codeCell() !== null;

    const pick = async (): Promise<void> => {
      const cell = codeCell();
      if (!cell) {
        return;
      }
      const kernel = notebooks.currentWidget?.sessionContext.session?.kernel;
      const request = { source: cell.source, kernel, server, trans };
      const addLine = {
        label: trans.__('Add to the cell'),
        act: (line: string): Promise<string> => {
          addToCell(cell, line);
          dialog.resolve();
          return Promise.resolve('');
        }
      };
      const source = new CellPickerSource(request, await describe(request), [addLine]);
      const dialog = new Dialog({
        title: trans.__('Run this cell on several GPUs'),
        body: new PickerBody(source, trans),
        buttons: [Dialog.cancelButton({ label: trans.__('Close') })],
        hasClose: true
      });
      dialog.addClass('nbmgpu-PickerDialog');
      await dialog.launch();
      notebooks.currentWidget?.content.activate();
    };

    commands.addCommand(CommandIDs.pickStrategy, {
      label: args => (args.toolbar ? '' : trans.__('Choose a Strategy for the Cell…')),
      caption: trans.__('Choose how this cell runs on several GPUs'),
      icon: args => (args.isPalette ? undefined : mgpuIcon),
      describedBy: NO_ARGS,
      isVisible,
      execute: () => pick().catch(showError)
    });
    commands.addCommand(CommandIDs.insertLine, {
      label: trans.__('Add the mGPU Line to the Cell'),
      caption: trans.__(
        'Add the %%mgpu line of the settings, which runs the cell on several GPUs'
      ),
      icon: args => (args.isPalette ? undefined : mgpuIcon),
      describedBy: NO_ARGS,
      isVisible: () => !hasLine(codeCell()?.source ?? '%%mgpu'),
      execute: () => {
        const cell = codeCell();
        if (cell) {
          addToCell(cell, settings.line);
        }
      }
    });
    for (const command of [CommandIDs.pickStrategy, CommandIDs.insertLine]) {
      palette?.addItem({ command, category: trans.__('mGPU') });
      notebooks.activeCellChanged.connect(() => commands.notifyCommandChanged(command));
    }
  }
};
