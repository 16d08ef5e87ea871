import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Clipboard, Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import type { IDocumentManager } from '@jupyterlab/docmanager';
import type { IDefaultFileBrowser } from '@jupyterlab/filebrowser';
import {
  NotebookActions,
  type INotebookTracker,
  type NotebookPanel
} from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';

import type { RunLine } from '../generated/report';
import { pathBelow } from './paths';
import type { IRunsModel } from './tokens';

/** What a kernel must have done before it knows `%mgpu`; it says nothing where it is done already. */
const LOAD = 'get_ipython().extension_manager.load_extension("nbmgpu")';

/** What actions need of JupyterLab; Notebook 7 lacks some of it. */
export interface IActionContext {
  readonly shell: JupyterFrontEnd.IShell;
  readonly files: IDefaultFileBrowser | null;
  readonly documents: IDocumentManager | null;
  readonly notebooks: INotebookTracker | null;
  readonly trans: TranslationBundle;
}

/** What can be done with a run. */
export class RunActions {
  constructor(
    private readonly model: IRunsModel,
    private readonly context: IActionContext
  ) {}

  /** Stop a run gently; once that was asked for, by force, if a person is sure. */
  async stop(run: RunLine): Promise<void> {
    const { trans } = this.context;
    const force = run.word === 'stopping';
    const warning = trans.__(
      'It has been asked to stop and is about to. By force its ranks are killed, and nothing that was trained comes back.'
    );
    const title = trans.__('Stop run %1 at once?', run.id);
    if (!force || (await this.sure(title, warning, trans.__('Stop at once')))) {
      await this.model.stop(run.id, force);
    }
  }

  /** Remove the folder of a run that is over, if a person is sure. */
  async remove(run: RunLine): Promise<void> {
    const { trans } = this.context;
    const warning = trans.__(
      'Its folder goes, with its curves and the logs of all ranks. What came back into its notebook stays there.'
    );
    if (
      await this.sure(trans.__('Delete run %1?', run.id), warning, trans.__('Delete'))
    ) {
      await this.model.remove(run.id);
    }
  }

  /** Show the run beneath a new cell of its notebook, or of the one in front. */
  async follow(run: RunLine): Promise<void> {
    const { notebooks, shell, trans } = this.context;
    const line = `%mgpu attach ${run.id}`;
    const panel = this.notebookOf(run) ?? notebooks?.currentWidget;
    if (!panel) {
      Clipboard.copyToSystem(line);
      this.say(
        trans.__('Open a notebook and run this line in it; it is copied: %1', line)
      );
      return;
    }
    shell.activateById(panel.id);
    await appendAndRun(panel, line);
  }

  /** Show the run's notebook. */
  revealNotebook(run: RunLine): void {
    const { documents } = this.context;
    const path = pathBelow(this.model.state.serverRoot, run.notebook);
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

  /** Show a run's folder among the files. */
  async openFolder(folder: string): Promise<void> {
    const { files, shell } = this.context;
    const path = pathBelow(this.model.state.serverRoot, folder);
    if (files && path !== null) {
      await files.model.cd(`/${path}`);
      shell.activateById(files.id);
    } else {
      this.copy(folder);
    }
  }

  private notebookOf(run: RunLine): NotebookPanel | undefined {
    const path = pathBelow(this.model.state.serverRoot, run.notebook);
    return this.context.notebooks?.find(panel => panel.context.path === path);
  }

  private copy(path: string): void {
    Clipboard.copyToSystem(path);
    this.say(
      this.context.trans.__('The path is copied; it cannot be opened from here: %1', path)
    );
  }

  private say(words: string): void {
    Notification.info(words, { autoClose: 8000 });
  }

  private async sure(title: string, body: string, label: string): Promise<boolean> {
    const buttons = [
      Dialog.cancelButton({ label: this.context.trans.__('Cancel') }),
      Dialog.warnButton({ label })
    ];
    const { button } = await showDialog({ title, body, buttons, defaultButton: 0 });
    return button.accept;
  }
}

async function appendAndRun(
  { content, sessionContext }: NotebookPanel,
  line: string
): Promise<void> {
  sessionContext.session?.kernel?.requestExecute({ code: LOAD, silent: true });
  NotebookActions.insertBelow(content);
  content.activeCell?.model.sharedModel.setSource(line);
  await NotebookActions.run(content, sessionContext);
}
