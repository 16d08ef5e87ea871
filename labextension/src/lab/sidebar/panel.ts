import { Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import type { Message } from '@lumino/messaging';
import { h, VirtualDOM, type VirtualElement } from '@lumino/virtualdom';
import { Widget } from '@lumino/widgets';

import { mgpuIcon } from '../icons';
import type { IRunsState } from '../runsstate';
import { errorText } from '../../view/errors';
import type { IRunsModel } from '../tokens';
import { deviceList } from './devices';
import { runList } from './runs';
import { firstRunHelp, notice } from './notice';

/** The sidebar: the devices of the machine, and the runs of all notebooks. */
export class Sidebar extends Widget {
  constructor(
    private readonly model: IRunsModel,
    private readonly commands: CommandRegistry,
    private readonly trans: TranslationBundle
  ) {
    super();
    this.id = 'nbmgpu-sidebar';
    this.addClass('nbmgpu-Sidebar');
    this.title.icon = mgpuIcon;
    this.title.caption = trans.__('mGPU: devices and runs');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('Devices and runs'));
    model.changed.connect(() => this.update(), this);
  }

  protected override onBeforeShow(message: Message): void {
    super.onBeforeShow(message);
    this.update();
  }

  protected override onUpdateRequest(message: Message): void {
    super.onUpdateRequest(message);
    if (this.isVisible) {
      VirtualDOM.render(this.content(this.model.state), this.node);
    }
  }

  private content(state: IRunsState): VirtualElement[] {
    const { trans } = this;
    const text = notice(state, trans);
    const notices = [text, ...state.problems]
      .filter(Boolean)
      .map(text =>
        h.div({ key: text, className: 'nbmgpu-Notice', role: 'status' }, text)
      );
    if (state.connection === 'missing') {
      return notices;
    }
    return [
      ...notices,
      section('devices', trans.__('Devices'), deviceList(state.devices, trans)),
      section('runs', trans.__('Runs'), ...this.runs(state))
    ];
  }

  private runs(state: IRunsState): VirtualElement[] {
    const { commands, trans } = this;
    if (!state.runs.length) {
      return state.connection === 'live' ? firstRunHelp(trans) : [];
    }
    const list = runList(state.runs, {
      trans,
      now: Date.now() / 1000,
      execute: (command, id) => void commands.execute(command, { id }),
      icon: command => commands.icon(command) as VirtualElement.IRenderer | undefined
    });
    return state.more ? [list, this.older()] : [list];
  }

  private older(): VirtualElement {
    return h.button(
      {
        key: 'older',
        className: 'nbmgpu-Sidebar-older',
        onclick: () => {
          const showError = (reason: unknown): string =>
            Notification.error(errorText(reason));
          this.model.loadOlder().catch(showError);
        }
      },
      this.trans.__('Show older runs')
    );
  }
}

function section(
  key: string,
  title: string,
  ...content: VirtualElement[]
): VirtualElement {
  const id = `nbmgpu-sidebar-${key}`;
  return h.section(
    { key, className: 'nbmgpu-Section', 'aria-labelledby': id },
    h.h2({ id, className: 'nbmgpu-Section-title' }, title),
    ...content
  );
}
