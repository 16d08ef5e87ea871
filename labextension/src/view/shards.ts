import type { LayerRow, ShardTable } from '../generated/runs';
import { make } from './dom';
import { foldable, rememberFolding, scrollRegion, shareCell } from './foldable';
import { formatBytes, formatShare } from './format';
import type { ISection, ISectionContext, ISectionView } from './section';
import type { ITranslate } from './source';

/** Where the choice is stored whether the table is unfolded. */
const IS_OPEN = 'shards unfolded';

/** A table of the share of each layer's parameters that each rank stores, folded at first. */
export const shards: ISection = { shows: ['shards'], create };

function create({ trans, read, memory }: ISectionContext): ISectionView {
  const title = trans.__('Which rank holds what');
  const region = scrollRegion('shards-region', title);
  const node = foldable(
    title,
    make(
      'p',
      'shards-caption',
      {},
      trans.__('Share of each layer’s parameters that a rank stores between two steps')
    ),
    region
  );
  rememberFolding(node, memory, IS_OPEN, false);
  let shown: ShardTable | undefined;
  const update = () => {
    const payload = read('shards');
    node.hidden = !payload.rows.length;
    if (payload !== shown) {
      shown = payload;
      region.replaceChildren(table(payload, trans));
    }
  };
  return { node, update };
}

function table({ ranks, rows, total }: ShardTable, trans: ITranslate): HTMLElement {
  const heads = ranks.map((place, rank) => {
    const name = trans.__('rank %1', rank);
    const lines = place.replace(/(\d) /g, '$1\n'); // a dimension of the mesh each
    const position = make('span', 'shards-position', {}, lines);
    return make('th', '', { scope: 'col' }, name, ...(place ? [' ', position] : []));
  });
  const sums = total.nbytes.map(size => make('td', '', {}, formatBytes(size)));
  const head = make(
    'tr',
    '',
    {},
    make('th', '', { scope: 'col' }, trans.__('Layer')),
    make('th', 'shards-count', { scope: 'col' }, trans.__('Parameters')),
    ...heads
  );
  return make(
    'table',
    'shards',
    { 'aria-label': trans.__('Parameters that each rank stores') },
    make('thead', '', {}, head),
    make(
      'tbody',
      '',
      {},
      ...rows.map(row => tableRow(row, row.name, layerCells(row, trans)))
    ),
    make('tfoot', '', {}, tableRow(total, trans.__('All layers'), sums))
  );
}

function tableRow(row: LayerRow, name: string, cells: HTMLElement[]): HTMLElement {
  const count = make('td', 'shards-count', {}, row.elements.toLocaleString('en-US'));
  return make('tr', '', {}, make('th', '', { scope: 'row' }, name), count, ...cells);
}

/** A cell for each rank, filled by its share. */
function layerCells(row: LayerRow, trans: ITranslate): HTMLElement[] {
  return row.stored.map((stored, rank) => {
    const share = row.elements ? stored / row.elements : 0;
    const size = formatBytes(row.nbytes[rank]);
    const title = trans.__('rank %1 stores %2 of %3', rank, size, row.name);
    const cell = shareCell(share, formatShare(share), title);
    cell.toggleAttribute('data-none', !stored);
    return cell;
  });
}
