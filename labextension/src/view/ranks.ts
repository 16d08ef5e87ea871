import type { Meter, RankRow } from '../generated/report';
import { button, KeyedList, make, setAttribute, setText, type IItemView } from './dom';
import type { ISection, ISectionContext, ISectionView } from './section';
import type { ITranslate } from './source';

/** A table of the ranks with their state and resource usage; a click opens a rank's log. */
export const ranks: ISection = { shows: ['ranks'], create };

function create({ trans, read, logRequests }: ISectionContext): ISectionView {
  const titles: [string, string][] = [
    ['rank', trans.__('Rank')],
    ['status', trans.__('State')],
    ['step', trans.__('Step')],
    ['time', trans.__('Step time')],
    ['cpu', trans.__('CPU')],
    ['memory', trans.__('Memory')],
    ['gpu', trans.__('GPU')],
    ['gpu-memory', trans.__('GPU memory')]
  ];
  const heads = titles.map(([name, title]) =>
    make('th', `rank-${name}`, { scope: 'col' }, title)
  );
  const body = make('tbody');
  const table = make(
    'table',
    'rank-table',
    { 'aria-label': trans.__('Ranks') },
    make('thead', '', {}, make('tr', '', {}, ...heads)),
    body
  );
  const node = make('div', 'ranks', {}, table);
  const rows = new KeyedList<RankRow>(
    body,
    row => String(row.rank),
    row => rankRow(row.rank, trans, () => logRequests.emit(row.rank))
  );
  const update = () => {
    const all = read('ranks');
    rows.update(all);
    table.toggleAttribute(
      'data-gpu',
      all.some(row => row.gpu !== null)
    );
    table.toggleAttribute(
      'data-vitals',
      all.some(row => row.cpu.text !== '')
    );
    node.hidden = !all.length;
  };
  return { node, update };
}

function rankRow(rank: number, trans: ITranslate, open: () => void): IItemView<RankRow> {
  const dot = make('span', 'dot', { 'aria-hidden': 'true' });
  const device = make('span', 'device');
  const name = button('rank-button', trans.__('rank %1', rank), open);
  name.prepend(dot);
  const state = make('span', 'rank-state');
  const warning = make('div', 'warning');
  const step = make('td', 'rank-step');
  const time = make('td', 'rank-time');
  const [cpu, memory, gpu, gpuMemory] = [
    trans.__('CPU of rank %1', rank),
    trans.__('Memory of rank %1', rank),
    trans.__('GPU of rank %1', rank),
    trans.__('GPU memory of rank %1', rank)
  ].map(meter);
  const node = make(
    'tr',
    'rank',
    {},
    make('th', 'rank-rank', { scope: 'row' }, name, device),
    make('td', 'rank-status', {}, state, warning),
    step,
    time,
    make('td', 'rank-cpu', {}, cpu.node),
    make('td', 'rank-memory', {}, memory.node),
    make('td', 'rank-gpu', {}, gpu.node),
    make('td', 'rank-gpu-memory', {}, gpuMemory.node)
  );
  const update = (row: RankRow) => {
    setAttribute(dot, 'data-tone', row.tone);
    setAttribute(state, 'data-tone', row.tone);
    setAttribute(name, 'aria-label', trans.__('Log of rank %1, %2', rank, row.label));
    name.title = trans.__('Open its log');
    setText(device, row.device);
    setText(state, row.detail ? `${row.label}: ${row.detail}` : row.label);
    setText(warning, row.warning);
    warning.hidden = !row.warning;
    setText(step, row.step ? row.step.toLocaleString('en-US') : '');
    setText(time, row.step_time);
    node.toggleAttribute('data-slowest', row.slowest);
    time.title = row.slowest
      ? trans.__('Spends the most time outside backward passes')
      : '';
    cpu.update(row.cpu);
    memory.update(row.memory);
    gpu.update(row.gpu ?? { text: '', fraction: -1 });
    gpuMemory.update(row.gpu_memory ?? { text: '', fraction: -1 });
  };
  return { node, update };
}

function meter(label: string): { node: HTMLElement; update(meter: Meter): void } {
  const text = make('span', 'meter-text');
  const fill = make('span', 'meter-fill');
  const node = make('span', 'meter', { role: 'meter', 'aria-label': label }, text, fill);
  setAttribute(node, 'aria-valuemin', '0');
  setAttribute(node, 'aria-valuemax', '100');
  const update = (value: Meter) => {
    setText(text, value.text);
    node.hidden = !value.text;
    const share = Math.max(value.fraction, 0);
    setAttribute(node, 'aria-valuenow', String(Math.round(100 * share)));
    setAttribute(node, 'aria-valuetext', value.text);
    fill.style.width = `${100 * share}%`;
    fill.toggleAttribute('data-full', share > 0.92);
  };
  return { node, update };
}
