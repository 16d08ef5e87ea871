import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import type { ISignal } from '@lumino/signaling';
import { h, VirtualDOM } from '@lumino/virtualdom';
import { Widget } from '@lumino/widgets';

import { CommandIDs } from './commandids';
import { mgpuIcon } from './icons';
import { runningRuns } from './runsstate';
import { statusText } from './messages';
import { IRunsModel } from './tokens';

/** The status bar item, visible while runs are in progress. */
export const statusPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbmgpu:status',
  description: 'Shows the running runs in the status bar.',
  autoStart: true,
  requires: [IRunsModel],
  optional: [IStatusBar, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IRunsModel,
    statusBar: IStatusBar | null,
    translator: ITranslator | null
  ) => {
    if (!statusBar) {
      return;
    }
    const trans = (translator ?? nullTranslator).load('nbmgpu');
    const item = new Widget();
    item.addClass('nbmgpu-Status');
    const draw = (): void => {
      const text = statusText(runningRuns(model.state), trans);
      const button = h.button(
        {
          className: 'nbmgpu-Status-button',
          title: trans.__('Show devices and runs'),
          onclick: () => void app.commands.execute(CommandIDs.showRuns)
        },
        h.span({ className: 'nbmgpu-Status-icon' }, mgpuIcon),
        h.span(text)
      );
      VirtualDOM.render(text ? button : null, item.node);
    };
    model.changed.connect(draw);
    statusBar.registerStatusItem(statusPlugin.id, {
      item,
      align: 'left',
      rank: 200,
      isActive: () => runningRuns(model.state).length > 0,
      activeStateChanged: model.changed as unknown as ISignal<IRunsModel, void>
    });
  }
};
