import type { ILabShell, JupyterFrontEnd } from '@jupyterlab/application';
import { MainAreaWidget } from '@jupyterlab/apputils';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { mgpuIcon } from './icons';

/** The content of a tab of nbmgpu, with a notice above it. */
export class TabContent extends Widget {
  constructor() {
    super();
    this.addClass('nbmgpu-RunTab');
    this.title.icon = mgpuIcon;
    this.node.tabIndex = -1;
    this.notice.className = 'nbmgpu-RunTab-notice';
    this.notice.setAttribute('role', 'status');
    this.node.append(this.notice);
    this.setNotice('');
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this.node.focus();
  }

  protected setNotice(text: string): void {
    this.notice.textContent = text;
    this.notice.hidden = !text;
  }

  private readonly notice = document.createElement('div');
}

/** Put `tab` where its application shows tabs. */
export function addTab(
  tab: MainAreaWidget,
  shell: JupyterFrontEnd.IShell,
  labShell: ILabShell | null
): void {
  if (labShell) {
    shell.add(tab, 'main', { type: 'mGPU' });
  } else {
    // The main area of Notebook 7 holds only the notebook.
    tab.addClass('nbmgpu-mod-below');
    shell.add(tab, 'down', { type: 'mGPU' });
  }
}
