import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import type { Message } from '@lumino/messaging';
import { h, VirtualDOM, type VirtualElement } from '@lumino/virtualdom';
import { Widget } from '@lumino/widgets';

import { mgpuIcon } from '../icons';
import type { IRunsState } from '../runsstate';
import { CommandIDs } from '../commandids';
import { showError } from '../showmessage';
import type { IRunsModel } from '../tokens';
import { RunChoice } from './choice';
import { deviceList } from './devices';
import { diskLine, DiskUsageMonitor } from './diskusage';
import { filterBar, showFilters } from './filterbar';
import { filteredRuns, NO_FILTERS } from './filters';
import { firstRunHelp, noMatch, notice } from './notice';
import { runList } from './runs';
import { runTools, showExtent } from './tools';

/** The sidebar: the devices of the machine, and the runs of all notebooks. */
export class Sidebar extends Widget {
  constructor(
    private readonly model: IRunsModel,
    private readonly commands: CommandRegistry,
    private readonly trans: TranslationBundle,
    private readonly language: string,
    private readonly choice = new RunChoice()
  ) {
    super();
    this.id = 'nbmgpu-sidebar';
    this.addClass('nbmgpu-Sidebar');
    this.title.icon = mgpuIcon;
    this.title.caption = trans.__('mGPU: devices and runs');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('Devices and runs'));
    this.disk = new DiskUsageMonitor(model, () => this.isVisible);
    model.changed.connect((_, state) => this.choice.forgetGone(state), this);
    for (const signal of [model.changed, choice.changed, this.disk.changed]) {
      signal.connect(() => this.update(), this);
    }
  }

  override dispose(): void {
    this.disk.dispose();
    super.dispose();
  }

  protected override onBeforeShow(message: Message): void {
    super.onBeforeShow(message);
    this.update();
    this.disk.refresh();
  }

  protected override onUpdateRequest(message: Message): void {
    super.onUpdateRequest(message);
    if (this.isVisible) {
      const { state } = this.model;
      VirtualDOM.render(this.content(state), this.node);
      this.setInputs(state);
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
    const { filters } = this.choice;
    const shown = filteredRuns(state.runs, filters, trans);
    const selected = this.choice.listedIds(state);
    const reset = (): void => {
      this.choice.filter(NO_FILTERS);
      this.focus('.nbmgpu-RunFilters-text');
    };
    return [
      filterBar({
        trans,
        runs: state.runs,
        filters,
        filter: filters => this.choice.filter(filters),
        reset
      }),
      runTools({
        trans,
        selected: selected.length,
        hidden:
          selected.length - shown.filter(run => this.choice.isSelected(run.id)).length,
        selectShown: isSelected =>
          this.choice.select(
            shown.map(run => run.id),
            isSelected
          ),
        compare: () => void commands.execute(CommandIDs.compareRuns, { ids: selected }),
        clear: () => {
          this.choice.clear();
          this.focus('.nbmgpu-RunTools-selectShown');
        }
      }),
      runList(shown, {
        trans,
        language: this.language,
        now: Date.now() / 1000,
        execute: (command, id) => void commands.execute(command, { id }),
        icon: command => commands.icon(command) as VirtualElement.IRenderer | undefined,
        select: (id, isSelected) => this.choice.select([id], isSelected)
      }),
      ...(shown.length ? [] : [noMatch({ trans, reset })]),
      ...(state.more ? [this.older()] : []),
      ...this.foot(state)
    ];
  }

  /** The virtual DOM sets attributes, and an input that was used no longer follows them. */
  private setInputs(state: IRunsState): void {
    const { choice, node, trans } = this;
    showFilters(node, choice.filters);
    showExtent(node, choice.extent(filteredRuns(state.runs, choice.filters, trans)));
    node.querySelectorAll<HTMLElement>('.nbmgpu-RunCard').forEach(card => {
      const box = card.querySelector<HTMLInputElement>('.nbmgpu-RunCard-select');
      if (box) {
        box.checked = choice.isSelected(card.dataset.run ?? '');
      }
    });
  }

  /** The button that was used goes away: without this, the keyboard would begin at the top again. */
  private focus(selector: string): void {
    this.node.querySelector<HTMLElement>(selector)?.focus();
  }

  private foot(state: IRunsState): VirtualElement[] {
    const { usage } = this.disk;
    return usage ? [diskLine(usage, state.runsRoot, this.trans)] : [];
  }

  private older(): VirtualElement {
    return h.button(
      {
        key: 'older',
        className: 'nbmgpu-Sidebar-older',
        onclick: () => void this.model.loadOlder().catch(showError)
      },
      this.trans.__('Show older runs')
    );
  }

  private readonly disk: DiskUsageMonitor;
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
