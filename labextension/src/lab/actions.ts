import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Clipboard, Dialog, InputDialog, showDialog } from '@jupyterlab/apputils';
import type { IDocumentManager } from '@jupyterlab/docmanager';
import type { IDefaultFileBrowser } from '@jupyterlab/filebrowser';
import {
  NotebookActions,
  type INotebookTracker,
  type NotebookPanel
} from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';

import type { RunLine } from '../generated/report';
import type { RunLabels } from '../generated/runs';
import { editLabels } from './labeldialog';
import { loadInKernel } from './loadextension';
import { relativePath } from './paths';
import { showMessage } from './showmessage';
import type { IRunsModel } from './tokens';

/** The parts of JupyterLab that actions use; Notebook 7 lacks some. */
export interface IActionContext {
  readonly shell: JupyterFrontEnd.IShell;
  readonly files: IDefaultFileBrowser | null;
  readonly documents: IDocumentManager | null;
  readonly notebooks: INotebookTracker | null;
  readonly trans: TranslationBundle;
}

/** The actions on a run. */
export class RunActions {
  constructor(
    private readonly model: IRunsModel,
    private readonly context: IActionContext
  ) {}

  /** Stop a run; a second time, kill it after confirmation. */
  async stop(run: RunLine): Promise<void> {
    const { trans } = this.context;
    const force = run.status.label === 'stopping';
    const warning = trans.__(
      'The run is stopping. A forced stop kills its ranks: no results are written back to the notebook.'
    );
    const title = trans.__('Force run %1 to stop?', run.id);
    if (!force || (await this.confirm(title, warning, trans.__('Force stop')))) {
      await this.model.stop(run.id, force);
    }
  }

  /** Change the name, the tags and the note of a run. */
  async label(run: RunLine): Promise<void> {
    const { trans } = this.context;
    const title = trans.__('Run %1', run.id);
    const save = (labels: RunLabels) => this.model.setLabels(run.id, labels);
    await editLabels(title, run.labels, save, trans);
  }

  /** Delete the folder of a finished run, after confirmation. */
  async remove(run: RunLine): Promise<void> {
    const { trans } = this.context;
    const warning = trans.__(
      'This deletes its folder with its curves and the logs of all ranks. Results in the notebook are kept.'
    );
    if (
      await this.confirm(trans.__('Delete run %1?', run.id), warning, trans.__('Delete'))
    ) {
      await this.model.remove(run.id);
    }
  }

  /** Attach to the run in a new cell of its notebook, or of the current one. */
  async follow(run: RunLine): Promise<void> {
    await this.runInNotebook(run, `%mgpu attach ${run.id}`);
  }

  /** Write the run as a script or a page, by a cell of its notebook: the kernel has its objects. */
  async export(run: RunLine, options: { report: boolean }): Promise<void> {
    const { trans } = this.context;
    const { report } = options;
    const { button, value } = await InputDialog.getText({
      title: report ? trans.__('Save a Report') : trans.__('Export as a Script'),
      label: trans.__('File name, below the folder of the notebook'),
      text: report ? 'report.html' : 'train.py',
      okLabel: report ? trans.__('Save') : trans.__('Export')
    });
    const file = value?.trim();
    if (button.accept && file) {
      const quoted = /\s/.test(file) ? `"${file}"` : file;
      const flag = report ? '--report ' : '';
      await this.runInNotebook(run, `%mgpu export ${flag}${run.id} ${quoted}`);
    }
  }

  /** Run a line in a new cell of the run's notebook, or of the current one. */
  private async runInNotebook(run: RunLine, line: string): Promise<void> {
    const { notebooks, shell, trans } = this.context;
    const panel = this.notebookOf(run) ?? notebooks?.currentWidget;
    if (!panel) {
      Clipboard.copyToSystem(line);
      showMessage(trans.__('Copied. Run this line in a notebook: %1', line));
      return;
    }
    shell.activateById(panel.id);
    await appendAndRun(panel, line);
  }

  /** Whether the notebook that is shown has started the run. */
  isOfCurrentNotebook(run: RunLine): boolean {
    const panel = this.context.notebooks?.currentWidget;
    return !!panel && panel === this.notebookOf(run);
  }

  /** Open the run's notebook. */
  revealNotebook(run: RunLine): void {
    const { documents } = this.context;
    const path = relativePath(this.model.state.serverRoot, run.notebook);
    if (documents && path !== null) {
      documents.openOrReveal(path);
    } else {
      this.copy(run.notebook);
    }
  }

  /** The folder of a run. */
  folderOf(run: RunLine): string {
    return `${this.model.state.runsRoot}/${run.id}`;
  }

  /** Open a run's folder in the file browser. */
  async openFolder(folder: string): Promise<void> {
    const { files, shell } = this.context;
    const path = relativePath(this.model.state.serverRoot, folder);
    if (files && path !== null) {
      await files.model.cd(`/${path}`);
      shell.activateById(files.id);
    } else {
      this.copy(folder);
    }
  }

  private notebookOf(run: RunLine): NotebookPanel | undefined {
    const path = relativePath(this.model.state.serverRoot, run.notebook);
    return this.context.notebooks?.find(panel => panel.context.path === path);
  }

  private copy(path: string): void {
    Clipboard.copyToSystem(path);
    showMessage(
      this.context.trans.__('Path copied; it is outside of the root folder: %1', path)
    );
  }

  private async confirm(title: string, body: string, label: string): Promise<boolean> {
    const buttons = [
      Dialog.cancelButton({ label: this.context.trans.__('Cancel') }),
      Dialog.warnButton({ label })
    ];
    const { button } = await showDialog({ title, body, buttons, defaultButton: 0 });
    return button.accept;
  }
}

async function appendAndRun(panel: NotebookPanel, line: string): Promise<void> {
  const { content, sessionContext } = panel;
  loadInKernel(panel);
  NotebookActions.insertBelow(content);
  content.activeCell?.model.sharedModel.setSource(line);
  await NotebookActions.run(content, sessionContext);
}
