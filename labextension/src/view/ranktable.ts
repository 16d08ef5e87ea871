import type { Meter, RankRow } from '../generated/report';
import { button, make, setAttribute, setText, type IItemView } from './dom';
import type { ITranslate } from './source';
import { stateText } from './words';

/** The table of ranks: its node, its body, and which columns it shows. */
export interface IRankTable {
  table: HTMLTableElement;
  body: HTMLElement;
  /** Hide the columns for which nothing is known. */
  showColumns(rows: IUsage[]): void;
}

/** The part of a row that decides which columns are shown. */
interface IUsage {
  memory: Meter;
  gpu_memory: Meter | null;
}

const NOTHING: Meter = { text: '', fraction: -1 };

/** Create an empty table with a head. */
export function rankTable(name: string, trans: ITranslate): IRankTable {
  const titles: [string, string][] = [
    ['rank', name],
    ['status', trans.__('State')],
    ['step', trans.__('Step')],
    ['time', trans.__('Step time')],
    ['cpu', trans.__('CPU')],
    ['memory', trans.__('Memory')],
    ['gpu', trans.__('GPU')],
    ['gpu-memory', trans.__('GPU memory')]
  ];
  const heads = titles.map(([column, title]) =>
    make('th', `rank-${column}`, { scope: 'col' }, title)
  );
  const body = make('tbody');
  const table = make(
    'table',
    'rank-table',
    { 'aria-label': trans.__('Ranks') },
    make('thead', '', {}, make('tr', '', {}, ...heads)),
    body
  );
  const showColumns = (rows: IUsage[]) => {
    table.toggleAttribute(
      'data-gpu',
      rows.some(row => row.gpu_memory !== null)
    );
    table.toggleAttribute(
      'data-vitals',
      rows.some(row => row.memory.text !== '')
    );
  };
  return { table, body, showColumns };
}

/** The row of a rank; a click opens its log. */
export function rankRow(
  rank: number,
  trans: ITranslate,
  open: () => void
): IItemView<RankRow> {
  const dot = make('span', 'dot', { 'aria-hidden': 'true' });
  const device = make('span', 'device');
  const name = button('rank-button', trans.__('rank %1', rank), open);
  name.prepend(dot);
  const [cpu, memory, gpu, gpuMemory] = [
    trans.__('CPU of rank %1', rank),
    trans.__('Memory of rank %1', rank),
    trans.__('GPU of rank %1', rank),
    trans.__('GPU memory of rank %1', rank)
  ].map(meter);
  const cells = rowCells(trans);
  const node = make(
    'tr',
    'rank',
    {},
    make('th', 'rank-rank', { scope: 'row' }, name, device),
    ...cells.nodes,
    make('td', 'rank-cpu', {}, cpu.node),
    make('td', 'rank-memory', {}, memory.node),
    make('td', 'rank-gpu', {}, gpu.node),
    make('td', 'rank-gpu-memory', {}, gpuMemory.node)
  );
  const update = (row: RankRow) => {
    setAttribute(dot, 'data-tone', row.tone);
    const state = stateText(row.label, trans);
    setAttribute(name, 'aria-label', trans.__('Log of rank %1, %2', rank, state));
    name.title = trans.__('Open its log');
    setText(device, row.device);
    node.toggleAttribute('data-slowest', row.slowest);
    const label = row.detail ? `${state}: ${row.detail}` : state;
    cells.update({ ...row, label });
    cpu.update(row.cpu);
    memory.update(row.memory);
    gpu.update(row.gpu ?? NOTHING);
    gpuMemory.update(row.gpu_memory ?? NOTHING);
  };
  return { node, update };
}

/** What the rows of ranks and nodes have in common. */
type State = Pick<
  RankRow,
  'label' | 'tone' | 'warning' | 'step' | 'step_time' | 'slowest'
>;

/** The cells of state, step and step time. */
export function rowCells(trans: ITranslate): {
  nodes: HTMLElement[];
  update(row: State): void;
} {
  const state = make('span', 'rank-state');
  const warning = make('div', 'warning');
  const step = make('td', 'rank-step');
  const time = make('td', 'rank-time');
  const update = (row: State) => {
    setAttribute(state, 'data-tone', row.tone);
    setText(state, row.label);
    setText(warning, row.warning);
    warning.hidden = !row.warning;
    setText(step, row.step ? row.step.toLocaleString('en-US') : '');
    setText(time, row.step_time);
    time.title = row.slowest
      ? trans.__('Spends the most time outside backward passes')
      : '';
  };
  return { nodes: [make('td', 'rank-status', {}, state, warning), step, time], update };
}

/** A bar with a usage. */
export function meter(label: string): {
  node: HTMLElement;
  update(meter: Meter): void;
} {
  const node = make('span', 'meter', { role: 'meter', 'aria-label': label });
  setAttribute(node, 'aria-valuemin', '0');
  setAttribute(node, 'aria-valuemax', '100');
  const update = (value: Meter) => {
    setText(node, value.text);
    node.hidden = !value.text;
    const share = Math.max(value.fraction, 0);
    setAttribute(node, 'aria-valuenow', String(Math.round(100 * share)));
    setAttribute(node, 'aria-valuetext', value.text);
    const width = `${Math.round(1000 * share) / 10}%`;
    if (node.style.getPropertyValue('--nbmgpu-share') !== width) {
      node.style.setProperty('--nbmgpu-share', width); // only then is the row styled again
    }
    node.toggleAttribute('data-full', share > 0.92);
  };
  return { node, update };
}
