import type { DiffLine, RunComparison } from '../../generated/report';
import { make } from '../dom';
import type { ITranslate } from '../source';

const SIGNS: Record<DiffLine['kind'], string> = {
  same: ' ',
  added: '+',
  removed: '-',
  gap: '…'
};

/** How each cell differs from that of the first run, folded. */
export class CellDifferences {
  readonly node = make('section', 'cell-differences');
  private drawn = '';

  constructor(private readonly trans: ITranslate) {
    this.node.setAttribute('aria-label', trans.__('Differences of the cells'));
  }

  update({ runs, cells }: RunComparison): void {
    const content = JSON.stringify([runs.map(run => run.title), cells]);
    if (content === this.drawn) {
      return;
    }
    this.drawn = content;
    const open = new Set(
      [...this.node.querySelectorAll<HTMLElement>('details[open]')].map(
        node => node.dataset.run
      )
    );
    const parts = runs.flatMap((run, index) => {
      const { lines } = cells[index];
      if (!lines.length) {
        return [];
      }
      const text = this.trans.__(
        'Cell of %1, compared with %2',
        run.title,
        runs[0].title
      );
      const details = make(
        'details',
        '',
        { 'data-run': run.id },
        make('summary', '', {}, text),
        make('pre', 'diff', {}, ...lines.map(line))
      );
      details.open = open.has(run.id);
      return [details];
    });
    const equal = make('p', 'empty', {}, this.trans.__('All cells are equal.'));
    this.node.replaceChildren(...(parts.length ? parts : [equal]));
  }
}

function line({ kind, text }: DiffLine): HTMLElement {
  return make('span', 'diff-line', { 'data-kind': kind }, `${SIGNS[kind]} ${text}\n`);
}
