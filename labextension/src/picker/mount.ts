// The picker view: the model, the recommendation, options, strategies, and the `%%mgpu` line.
import { button, make, setText } from '../view/dom';
import { english, type ITranslate } from '../view';
import { ControlBar } from './controls';
import { StrategyList } from './strategylist';
import { formatBytes } from '../view/format';
import type { Advice, IPickerSource } from './source';

/** Show the picker of `source` in `node`, until it is disposed of. */
export function mountPicker(
  node: HTMLElement,
  source: IPickerSource,
  trans: ITranslate = english
): { dispose(): void } {
  const picker = new Picker(source, trans);
  node.append(picker.node);
  const off = source.onChange(() => picker.update());
  picker.update();
  return {
    dispose: () => {
      off();
      picker.node.remove();
    }
  };
}

class Picker {
  readonly node: HTMLElement;
  /** The strategy that the user selected; empty for the recommendation. */
  private chosen: string;
  private subject = make('div', 'picker-subject');
  private problem = make('pre', 'picker-problem', { role: 'alert' });
  private reason = make('div', 'picker-reason');
  private controls: ControlBar;
  private rows: StrategyList;
  private legend = make('div', 'picker-legend', { 'aria-hidden': 'true' });
  private line = make('code', 'picker-line', { 'aria-live': 'polite' });
  private buttons: HTMLButtonElement[];
  private message = make('span', 'picker-message', { role: 'status' });
  private notes = make('ul');

  constructor(
    private source: IPickerSource,
    private trans: ITranslate
  ) {
    this.chosen = source.state.selected;
    this.controls = new ControlBar(trans, controls => {
      this.node.setAttribute('aria-busy', 'true');
      source.choose(controls);
    });
    this.rows = new StrategyList(trans, name => {
      this.chosen = name;
      this.update();
    });
    this.buttons = [
      ...source.actions.map(action =>
        button('picker-do', action.label, () => void this.act(action.act))
      ),
      button('picker-do', trans.__('Copy line'), () => void this.act(copy(trans)))
    ];
    const title = make('summary', '', {}, trans.__('What this is based on'));
    this.node = make(
      'div',
      'picker',
      {
        role: 'region',
        'aria-label': trans.__('Strategy picker')
      },
      this.subject,
      this.problem,
      this.reason,
      this.controls.node,
      this.rows.node,
      this.legend,
      make('div', 'picker-result', {}, this.line, ...this.buttons, this.message),
      make('details', 'picker-notes', {}, title, this.notes)
    );
  }

  /** Show the current state. */
  update(): void {
    const { state } = this.source;
    const { advice } = state;
    this.node.removeAttribute('aria-busy');
    this.controls.update(state);
    setText(this.problem, state.problem);
    this.problem.hidden = state.problem === '';
    for (const part of [
      this.reason,
      this.rows.node,
      this.legend,
      this.notes.parentElement
    ]) {
      part?.toggleAttribute('hidden', advice === null);
    }
    setText(this.subject, this.heading(state.subject, advice));
    if (advice) {
      this.show(advice, state.kinds);
    }
    const line = advice ? this.lineOf(advice) : '';
    setText(this.line, line || this.trans.__('No available strategy is selected.'));
    this.buttons.forEach(node => (node.disabled = line === ''));
    setText(this.message, '');
    this.source.onLine?.(line);
  }

  private show(advice: Advice, kinds: Record<string, string>): void {
    const name = advice.recommended;
    this.reason.replaceChildren(
      ...(name ? [make('b', '', {}, name), ' '] : []),
      advice.reason
    );
    if (advice.largest_batch !== null) {
      const most = advice.largest_batch.toLocaleString('en');
      this.reason.append(' ', this.trans.__('A global batch of %1 should fit.', most));
    }
    this.reason.classList.toggle('nbmgpu-picker-hopeless', name === '');
    this.rows.update(advice, this.nameOf(advice));
    const drawn = advice.rows.flatMap(row => row.parts.map(part => part.kind));
    this.legend.replaceChildren(
      ...[...new Set(drawn)].map(kind =>
        make(
          'span',
          'picker-key',
          { title: kinds[kind] ?? kind },
          make('i', `kind-${kind}`),
          kind
        )
      )
    );
    const sources = advice.rows.filter(row => row.source);
    this.notes.replaceChildren(
      ...advice.notes.map(note => make('li', '', {}, note)),
      ...sources.map(row =>
        make(
          'li',
          '',
          {},
          make('b', '', {}, row.name),
          `: ${row.source}. `,
          speedOf(row.speed)
        )
      )
    );
  }

  private heading(subject: string, advice: Advice | null): string {
    const parts = [subject, advice?.model, advice?.devices];
    if (advice?.free) {
      parts.push(this.trans.__('%1 free for each', formatBytes(advice.free)));
    }
    return parts.filter(Boolean).join(' · ');
  }

  private nameOf(advice: Advice): string {
    const chosen = advice.rows.find(row => row.name === this.chosen);
    return chosen?.line ? chosen.name : advice.recommended;
  }

  private lineOf(advice: Advice): string {
    const name = this.nameOf(advice);
    const row = advice.rows.find(one => one.name === name);
    return name === advice.recommended ? advice.line : (row?.line ?? '');
  }

  private async act(act: (line: string) => Promise<string>): Promise<void> {
    setText(this.message, await act(this.line.textContent ?? ''));
  }
}

function speedOf(speed: Advice['rows'][number]['speed']): string {
  return `${speed.text}: ${speed.reason}.`;
}

/** Copy the line to the clipboard; return a message with the result. */
function copy(trans: ITranslate): (line: string) => Promise<string> {
  return async line => {
    try {
      await navigator.clipboard.writeText(line);
      return trans.__('Copied. Paste it as the first line of your cell.');
    } catch {
      return trans.__(
        'The browser does not allow copying here: select the line and copy it.'
      );
    }
  };
}
