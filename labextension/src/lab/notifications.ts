import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import type { RunLine } from '../generated/report';
import { CommandIDs } from './commandids';
import { relativePath } from './paths';
import { endedText } from './messages';
import { IRunsModel, ISettings } from './tokens';

/** Notifies when a run ends while its notebook is not visible, unless the user stopped it. */
export const notificationsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbmgpu:notifications',
  description: 'Notifies when a run ends while its notebook is not visible.',
  autoStart: true,
  requires: [IRunsModel, ISettings],
  optional: [INotebookTracker, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IRunsModel,
    settings: ISettings,
    notebooks: INotebookTracker | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('nbmgpu');
    const isVisible = (run: RunLine): boolean => {
      const path = relativePath(model.state.serverRoot, run.notebook);
      const panel = notebooks?.find(candidate => candidate.context.path === path);
      return !document.hidden && !!panel?.isVisible;
    };
    model.ended.connect((_, run) => {
      if (!settings.notifications || run.status.label === 'stopped' || isVisible(run)) {
        return;
      }
      const kind = { good: 'success', bad: 'error' }[run.status.tone as string] ?? 'info';
      Notification.emit(endedText(run, trans), kind as Notification.TypeOptions, {
        autoClose: run.status.tone === 'bad' ? false : 8000,
        actions: [
          {
            label: trans.__('Open the run'),
            callback: () => void app.commands.execute(CommandIDs.openRun, { id: run.id })
          }
        ]
      });
    });
  }
};
