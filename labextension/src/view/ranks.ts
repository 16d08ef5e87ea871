import type { RankRow } from '../generated/report';
import { KeyedList, make } from './dom';
import { rankRow, rankTable } from './ranktable';
import type { ISection, ISectionContext, ISectionView } from './section';

/**
 * A table of the ranks with their state and resource usage; a click opens a rank's log.  It is empty
 * in a run on several machines: see `nodes`.
 */
export const ranks: ISection = { shows: ['ranks'], create };

function create({ trans, read, logRequests }: ISectionContext): ISectionView {
  const { table, body, showColumns } = rankTable(trans.__('Rank'), trans);
  const node = make('div', 'ranks', {}, table);
  const rows = new KeyedList<RankRow>(
    body,
    row => String(row.rank),
    row => rankRow(row.rank, trans, () => logRequests.emit(row.rank))
  );
  const update = () => {
    const all = read('ranks');
    rows.update(all);
    showColumns(all);
    node.hidden = !all.length;
  };
  return { node, update };
}
