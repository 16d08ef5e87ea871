import type { Extreme, MetricRow, MetricTable } from '../generated/report';
import { KeyedList, make, setText, type IItemView } from './dom';
import { scrollRegion } from './foldable';
import type { ITranslate } from './source';
import { metricText } from './words';

/** A table of the metrics: the last, lowest, highest and mean value of each. */
export class MetricTableView {
  readonly node: HTMLElement;
  private readonly mean = make('th', '', { scope: 'col' });
  private readonly rows: KeyedList<MetricRow>;

  constructor(private readonly trans: ITranslate) {
    const title = trans.__('Metrics');
    const column = (text: string) => make('th', '', { scope: 'col' }, text);
    const head = make(
      'tr',
      '',
      {},
      column(trans.__('Metric')),
      column(trans.__('Last')),
      column(trans.__('Lowest')),
      column(trans.__('Highest')),
      this.mean,
      column(trans.__('Points'))
    );
    const body = make('tbody');
    this.rows = new KeyedList(
      body,
      row => row.name,
      () => metricRow(trans)
    );
    const caption = make(
      'caption',
      'unseen',
      {},
      trans.__('Values of each metric in this run; the best one is bold')
    );
    const table = make(
      'table',
      'metrics',
      {},
      caption,
      make('thead', '', {}, head),
      body
    );
    this.node = scrollRegion('metrics-region', title, table);
  }

  update({ rows, epoch, recent }: MetricTable): void {
    setText(
      this.mean,
      epoch
        ? this.trans.__('Mean of epoch %1', epoch)
        : this.trans.__('Mean of the last %1 points', recent)
    );
    this.rows.update(rows);
  }

  dispose(): void {
    this.rows.dispose();
  }
}

function metricRow(trans: ITranslate): IItemView<MetricRow> {
  const name = make('th', '', { scope: 'row' });
  const last = make('td');
  const lowest = extremeCell(trans);
  const highest = extremeCell(trans);
  const mean = make('td');
  const points = make('td');
  const node = make('tr', '', {}, name, last, lowest.node, highest.node, mean, points);
  const update = (row: MetricRow) => {
    setText(name, metricText(row.name, trans));
    name.title = row.name;
    setText(last, row.last);
    last.toggleAttribute('data-nonfinite', !row.finite);
    lowest.update(row.lowest, row.best === 'lowest');
    highest.update(row.highest, row.best === 'highest');
    setText(mean, row.mean || '–');
    setText(points, row.points.toLocaleString('en-US'));
  };
  return { node, update };
}

/** A cell with a value and its step. */
function extremeCell(trans: ITranslate) {
  const value = make('span', 'metrics-value');
  const step = make('span', 'metrics-step');
  const best = make('span', 'unseen', {}, trans.__(', the best one'));
  const node = make('td', '', {}, value, best, ' ', step);
  const update = (extreme: Extreme | null, isBest: boolean) => {
    setText(value, extreme?.value ?? '–');
    setText(
      step,
      extreme ? trans.__('at step %1', extreme.step.toLocaleString('en-US')) : ''
    );
    best.hidden = !isBest;
    node.toggleAttribute('data-best', isBest);
  };
  return { node, update };
}
