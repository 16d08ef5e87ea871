// The table of strategies, one of which can be selected.
import { make } from '../view/dom';
import type { ITranslate } from '../view';
import { memoryBar } from './memorybar';
import { scaleOf, formatByteRange } from './format';
import type { Advice, Estimate } from './source';

/** The strategies shown by default; the others are below "More strategies". */
const DEFAULT_NAMES = new Set(['ddp', 'zero1', 'zero2', 'fsdp', 'fsdp --cpu-offload']);

/** The strategies as a group of radio buttons. */
export class StrategyList {
  readonly node: HTMLElement;
  private more: HTMLDetailsElement;
  private first: HTMLElement;
  private rest: HTMLElement;

  constructor(
    private trans: ITranslate,
    private choose: (name: string) => void
  ) {
    this.first = make('div', 'picker-rows');
    this.rest = make('div', 'picker-rows');
    const title = make('summary', '', {}, trans.__('More strategies'));
    this.more = make('details', 'picker-more', {}, title, this.rest);
    this.node = make(
      'div',
      'picker-strategies',
      { role: 'radiogroup', 'aria-label': trans.__('Strategy') },
      this.columns(),
      this.first,
      this.more
    );
    this.node.addEventListener('keydown', event => this.move(event));
  }

  /** Show the rows of `advice`, with `chosen` selected. */
  update(advice: Advice, chosen: string): void {
    const focused = this.node.contains(document.activeElement)
      ? (document.activeElement as HTMLInputElement).value
      : '';
    const full = scaleOf(advice);
    const shown = (rows: Estimate[]) =>
      rows.map(row => this.draw(row, advice, full, row.name === chosen));
    this.first.replaceChildren(
      ...shown(advice.rows.filter(row => DEFAULT_NAMES.has(row.name)))
    );
    const others = advice.rows.filter(row => !DEFAULT_NAMES.has(row.name));
    this.rest.replaceChildren(...shown(others));
    this.more.hidden = others.length === 0;
    if (others.some(row => row.name === chosen)) {
      this.more.open = true;
    }
    if (focused) {
      [...this.node.querySelectorAll('input')].find(i => i.value === focused)?.focus();
    }
  }

  /** The header row. The radio buttons are labelled by their rows, so it is for the eye only. */
  private columns(): HTMLElement {
    const { trans } = this;
    const titles = [
      trans.__('Strategy'),
      trans.__('Memory per rank'),
      trans.__('Speed'),
      trans.__('Cost')
    ];
    return make(
      'div',
      'picker-columns',
      { 'aria-hidden': 'true' },
      ...titles.map(title => make('span', '', {}, title))
    );
  }

  private draw(
    row: Estimate,
    advice: Advice,
    full: number,
    chosen: boolean
  ): HTMLElement {
    const { trans } = this;
    // Without a common name, Tab reaches each button: notebooks intercept the arrow keys.
    const radio = make('input', '', { type: 'radio', value: row.name });
    radio.checked = chosen;
    radio.disabled = row.line === '';
    radio.addEventListener('change', () => this.choose(row.name));
    const name = make('span', 'picker-name', {}, row.name);
    const title = make('span', 'picker-title', {}, radio, name);
    if (row.name === advice.recommended) {
      title.append(make('span', 'picker-star', {}, trans.__('recommended')));
    }
    const memory = make('span', 'picker-memory');
    if (row.parts.length > 0) {
      memory.append(
        memoryBar(row, full, advice.free, trans),
        make('span', 'picker-size', {}, formatByteRange(row.low, row.high))
      );
    }
    memory.append(make('span', `picker-fit nbmgpu-fit-${row.fits}`, {}, this.fit(row)));
    const speed = make(
      'span',
      'picker-speed',
      { title: row.speed.reason },
      row.speed.text
    );
    if (row.traffic) {
      const sent = trans.__('between nodes: %1', row.traffic.text);
      speed.append(make('span', 'picker-traffic', {}, sent));
    }
    const about = make('span', 'picker-costs', {}, row.problem || row.costs);
    const label = make(
      'label',
      'picker-row',
      { title: row.summary },
      title,
      memory,
      speed,
      about
    );
    label.classList.toggle('nbmgpu-picker-chosen', chosen);
    label.classList.toggle('nbmgpu-picker-refused', row.line === '');
    return label;
  }

  /** Select the strategy above or below, if the arrow keys are not intercepted. */
  private move(event: KeyboardEvent): void {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const shown = [...this.node.querySelectorAll('input')].filter(
      radio => !radio.disabled && (this.more.open || this.first.contains(radio))
    );
    const next = shown[shown.indexOf(event.target as HTMLInputElement) + (step ?? 0)];
    if (step && next) {
      event.preventDefault();
      next.focus();
      this.choose(next.value);
    }
  }

  private fit(row: Estimate): string {
    const { trans } = this;
    if (row.line === '') {
      return trans.__('not available');
    }
    switch (row.fits) {
      case 'fits':
        return trans.__('fits');
      case 'tight':
        return trans.__('tight');
      case 'no':
        return trans.__('does not fit');
      default:
        return trans.__('fit unknown');
    }
  }
}
