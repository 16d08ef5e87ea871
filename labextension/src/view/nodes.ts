import type { NodeRow, RankRow } from '../generated/report';
import {
  addArrowKeyNavigation,
  button,
  KeyedList,
  make,
  setAttribute,
  setText,
  type IItemView
} from './dom';
import { meter, rankRow, rankTable, rowCells } from './ranktable';
import type { ISection, ISectionContext, ISectionView } from './section';
import type { ITranslate } from './source';
import { stateText } from './words';

/** Where the numbers of the unfolded nodes are stored. */
const OPEN = 'open nodes';

/** Number of nodes above which those with problems can be shown alone. */
const FEW_NODES = 16;

/** A row of the table: of a node, or of a rank on an unfolded node. */
type Item = { node: NodeRow; isOpen: boolean } | { rank: RankRow };

/** A table of the machines of a run; each unfolds to its ranks, which are requested then. */
export const nodes: ISection = { shows: ['nodes'], create };

function create(context: ISectionContext): ISectionView {
  const { source, trans, memory, read, logRequests } = context;
  const open = new Set((memory.get(OPEN) as number[] | undefined) ?? []);
  const known = new Map<number, RankRow[]>();
  let onlyProblems = false;
  let isAsking = false;

  const { table, body, showColumns } = rankTable(trans.__('Node'), trans);
  const problems = button('toggle', '', () => {
    onlyProblems = !onlyProblems;
    update();
  });
  const node = make(
    'section',
    'nodes',
    { 'aria-label': trans.__('Nodes') },
    problems,
    make('div', 'ranks', {}, table)
  );
  // One button of the table is in the tab order; the arrow keys reach the others.
  addArrowKeyNavigation(body, 'button', undefined, ['ArrowUp', 'ArrowDown']);
  let current: EventTarget | null = null;
  body.addEventListener('focusin', event => {
    current = event.target;
    setTabOrder();
  });
  const setTabOrder = () => {
    const all = [...body.querySelectorAll<HTMLElement>('button')];
    const chosen = all.find(each => each === current) ?? all[0];
    all.forEach(each => setAttribute(each, 'tabindex', each === chosen ? '0' : '-1'));
  };

  const toggle = (number: number) => {
    if (!open.delete(number)) {
      open.add(number);
    }
    memory.set(OPEN, [...open]);
    draw();
    void ask();
  };
  const rows = new KeyedList<Item>(body, keyOf, item =>
    'node' in item
      ? (nodeRow(item.node.node, trans, toggle) as IItemView<Item>)
      : ofRank(item.rank.rank)
  );
  const ofRank = (rank: number): IItemView<Item> => {
    const row = rankRow(rank, trans, () => logRequests.emit(rank));
    row.node.dataset.ofNode = '';
    return { ...row, update: item => row.update((item as { rank: RankRow }).rank, 0) };
  };

  /** Request the ranks of the unfolded nodes: one request at a time. */
  const ask = async () => {
    const numbers = [...open];
    if (isAsking || !numbers.length) {
      return;
    }
    isAsking = true;
    try {
      const found = await source.ranks({ nodes: numbers });
      const first = new Map(read('nodes').map(row => [row.node, row]));
      for (const number of numbers) {
        const { first: begin, ranks: count } = first.get(number) ?? {
          first: 0,
          ranks: 0
        };
        const own = found.filter(({ rank }) => rank >= begin && rank < begin + count);
        known.set(number, own);
      }
    } catch {
      // The next update asks again; what is known remains.
    } finally {
      isAsking = false;
    }
    draw();
  };

  const draw = () => {
    const all = read('nodes');
    const bad = all.filter(row => row.tone === 'bad' || row.warning);
    const shown = onlyProblems && bad.length ? bad : all;
    problems.hidden = all.length <= FEW_NODES || !bad.length;
    setText(problems, trans.__('Only nodes with problems (%1)', bad.length));
    setAttribute(problems, 'aria-pressed', String(shown !== all));
    rows.update(
      shown.flatMap((row): Item[] => {
        const isOpen = open.has(row.node);
        const ranks = isOpen ? (known.get(row.node) ?? []) : [];
        return [{ node: row, isOpen }, ...ranks.map(rank => ({ rank }))];
      })
    );
    showColumns(all);
    setTabOrder();
    node.hidden = !all.length;
  };
  const update = () => {
    draw();
    void ask();
  };
  return { node, update };
}

function keyOf(item: Item): string {
  return 'node' in item ? `node ${item.node.node}` : `rank ${item.rank.rank}`;
}

function nodeRow(
  number: number,
  trans: ITranslate,
  toggle: (number: number) => void
): IItemView<{ node: NodeRow; isOpen: boolean }> {
  const dot = make('span', 'dot', { 'aria-hidden': 'true' });
  const title = make('span');
  const name = button('node-button', '', () => toggle(number));
  name.append(make('span', 'caret', { 'aria-hidden': 'true' }), dot, title);
  const count = make('span', 'device');
  const cells = rowCells(trans);
  const memory = meter(trans.__('Most memory of a rank on node %1', number));
  const gpuMemory = meter(trans.__('Most GPU memory of a rank on node %1', number));
  const node = make(
    'tr',
    'rank',
    {},
    make('th', 'rank-rank', { scope: 'row' }, name, count),
    ...cells.nodes,
    make('td', 'rank-cpu'),
    make('td', 'rank-memory', {}, memory.node),
    make('td', 'rank-gpu'),
    make('td', 'rank-gpu-memory', {}, gpuMemory.node)
  );
  node.dataset.node = String(number);
  const update = ({ node: row, isOpen }: { node: NodeRow; isOpen: boolean }) => {
    const last = row.first + row.ranks - 1;
    setText(title, row.name || trans.__('node %1', number));
    setText(
      count,
      row.ranks === 1
        ? trans.__('rank %1', row.first)
        : trans.__('ranks %1 to %2', row.first, last)
    );
    setAttribute(dot, 'data-tone', row.tone);
    setAttribute(name, 'aria-expanded', String(isOpen));
    name.title = isOpen ? trans.__('Hide its ranks') : trans.__('Show its ranks');
    node.toggleAttribute('data-slowest', row.slowest);
    cells.update({ ...row, label: stateText(row.label, trans) });
    memory.update(row.memory);
    gpuMemory.update(row.gpu_memory ?? { text: '', fraction: -1 });
  };
  return { node, update };
}
