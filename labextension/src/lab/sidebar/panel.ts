import { Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import type { Message } from '@lumino/messaging';
import { h, VirtualDOM, type VirtualElement } from '@lumino/virtualdom';
import { Widget } from '@lumino/widgets';

import { mgpuIcon } from '../icons';
import { matchingRuns, type IRunsState } from '../runsstate';
import { errorText } from '../../view/errors';
import { CommandIDs } from '../commandids';
import type { IRunsModel } from '../tokens';
import { deviceList } from './devices';
import { firstRunHelp, notice } from './notice';
import { runList } from './runs';
import { runTools } from './tools';

/** The sidebar: the devices of the machine, and the runs of all notebooks. */
export class Sidebar extends Widget {
  constructor(
    private readonly model: IRunsModel,
    private readonly commands: CommandRegistry,
    private readonly trans: TranslationBundle,
    private readonly language: string
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
      this.setInputs();
    }
  }

  private filter = '';
  private readonly selected = new Set<string>();

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
    const shown = matchingRuns(state.runs, this.filter, trans);
    const selected = this.selectedIds(state);
    const tools = runTools({
      trans,
      selected: selected.length,
      setFilter: filter => {
        this.filter = filter;
        this.update();
      },
      compare: () => void commands.execute(CommandIDs.compareRuns, { ids: selected }),
      clear: () => {
        this.selected.clear();
        this.update();
      }
    });
    const list = runList(shown, {
      trans,
      language: this.language,
      now: Date.now() / 1000,
      execute: (command, id) => void commands.execute(command, { id }),
      icon: command => commands.icon(command) as VirtualElement.IRenderer | undefined,
      select: (id, isSelected) => {
        if (isSelected) {
          this.selected.add(id);
        } else {
          this.selected.delete(id);
        }
        this.update();
      }
    });
    const none = shown.length
      ? []
      : [
          h.div(
            { key: 'none', className: 'nbmgpu-Notice' },
            trans.__('No run has all of these words.')
          )
        ];
    return [tools, list, ...none, ...(state.more ? [this.older()] : [])];
  }

  /** The selected runs that exist, oldest first: others are compared with the oldest one. */
  private selectedIds(state: IRunsState): string[] {
    const ids = state.runs.map(run => run.id).filter(id => this.selected.has(id));
    return ids.reverse();
  }

  /** The virtual DOM sets attributes, and an input that was used no longer follows them. */
  private setInputs(): void {
    const filter = this.node.querySelector<HTMLInputElement>('.nbmgpu-RunTools-filter');
    if (filter && filter.value !== this.filter) {
      filter.value = this.filter;
    }
    this.node.querySelectorAll<HTMLElement>('.nbmgpu-RunCard').forEach(card => {
      const box = card.querySelector<HTMLInputElement>('.nbmgpu-RunCard-select');
      if (box) {
        box.checked = this.selected.has(card.dataset.run ?? '');
      }
    });
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
