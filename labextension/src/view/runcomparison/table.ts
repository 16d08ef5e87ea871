import type { Column, ComparedRun, RunComparison } from '../../generated/report';
import { button, make, noteNode, setAttribute, setNote } from '../dom';
import { setSample } from '../linestyle';
import type { ITranslate } from '../source';
import { bestTitle, headlineText, stateText, titleText } from '../words';
import { runStyle } from './runstyle';
import { bestPlaces, sortedPlaces, type ISorting } from './sorting';

/** What the table does with a run. */
export interface ITableActions {
  open(id: string): void;
  remove(id: string): void;
}

/** A row per run and a column per property; a click on a column's title sorts by it. */
export class ComparisonTable {
  readonly node = make('div', 'compared-scroll', { tabindex: '0' });
  private sorting: ISorting | null = null;
  private comparison: RunComparison | null = null;
  private drawn = '';

  constructor(
    private readonly actions: ITableActions,
    private readonly trans: ITranslate
  ) {
    this.node.setAttribute('role', 'region');
    setAttribute(this.node, 'aria-label', trans.__('Options and results'));
  }

  update(comparison: RunComparison): void {
    this.comparison = comparison;
    const { runs, columns } = comparison;
    const content = JSON.stringify([
      runs.map(run => [run.id, run.title, run.labels.note]),
      columns
    ]);
    if (content !== this.drawn) {
      this.drawn = content;
      this.draw();
    }
  }

  private draw(): void {
    const { comparison, sorting, trans } = this;
    if (!comparison) {
      return;
    }
    const focused = focusedPart(this.node);
    const places = sortedPlaces(comparison.columns, comparison.runs.length, sorting);
    const head = make(
      'tr',
      '',
      {},
      make('th', '', { scope: 'col' }, trans.__('Run')),
      ...comparison.columns.map(column => this.title(column))
    );
    const best = comparison.columns.map(bestPlaces);
    const rows = places.map(place =>
      make(
        'tr',
        '',
        { 'data-run': comparison.runs[place].id },
        this.runCell(comparison.runs[place], place),
        ...comparison.columns.map((column, index) => {
          const cell = make('td', '', {}, this.text(column, place) || '–');
          cell.toggleAttribute('data-best', best[index].includes(place));
          cell.toggleAttribute('data-same', !column.differs);
          return cell;
        })
      )
    );
    const table = make(
      'table',
      'compared',
      {},
      make('thead', '', {}, head),
      make('tbody', '', {}, ...rows)
    );
    this.node.replaceChildren(table);
    if (focused) {
      this.node.querySelector<HTMLElement>(focused)?.focus();
    }
  }

  private text({ cells, group, name }: Column, place: number): string {
    const { text } = cells[place];
    return group === 'result' && name === 'state' ? stateText(text, this.trans) : text;
  }

  private title({ differs, group, name }: Column): HTMLElement {
    const title =
      group === 'metric' ? bestTitle(name, this.trans) : titleText(name, this.trans);
    const direction = this.sorting?.name === name ? this.sorting.direction : null;
    const order = { up: 'ascending', down: 'descending', none: 'none' }[
      direction ?? 'none'
    ];
    const arrow = { up: ' ↑', down: ' ↓', none: '' }[direction ?? 'none'];
    const sort = button('compared-title', title + arrow, () => {
      this.sorting = { name, direction: direction === 'up' ? 'down' : 'up' };
      this.draw();
    });
    sort.dataset.column = name;
    const cell = make('th', '', { scope: 'col', 'aria-sort': order }, sort);
    cell.toggleAttribute('data-same', !differs);
    return cell;
  }

  private runCell(run: ComparedRun, place: number): HTMLElement {
    const { actions, trans } = this;
    const open = button('compared-run', run.title, () => actions.open(run.id));
    open.title = `${headlineText(run.headline, trans)}\n${run.id}`;
    const remove = button('compared-remove', '×', () => actions.remove(run.id));
    setAttribute(
      remove,
      'aria-label',
      trans.__('Remove %1 from the comparison', run.title)
    );
    const dot = make('span', 'compared-color', { 'aria-hidden': 'true' });
    setSample(dot, runStyle(place));
    const note = noteNode(trans.__('Note'));
    setNote(note, run.labels.note);
    const head = make('div', 'compared-head', {}, dot, open, remove);
    return make('th', '', { scope: 'row' }, head, note);
  }
}

/** A selector of the button in `table` that has the focus; empty if it is elsewhere. */
function focusedPart(table: HTMLElement): string {
  const active = document.activeElement;
  if (!(active instanceof HTMLElement) || !table.contains(active)) {
    return '';
  }
  if (active.dataset.column) {
    return `[data-column="${CSS.escape(active.dataset.column)}"]`;
  }
  const run = active.closest<HTMLElement>('[data-run]')?.dataset.run ?? '';
  return `[data-run="${CSS.escape(run)}"] .${active.className}`;
}
