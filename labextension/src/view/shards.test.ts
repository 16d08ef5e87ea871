import { expect, test } from 'vitest';

import type { Parts } from '../generated/report';
import type { ShardTable } from '../generated/runs';
import { Emitter } from './emitter';
import { shards } from './shards';
import { english, type IMemory, type IRunSource } from './source';

const TABLE: ShardTable = {
  strategy: 'pp',
  ranks: ['dp 0 pp 0', 'dp 0 pp 1'],
  rows: [
    { name: 'layers.0', elements: 4, stored: [4, 0], nbytes: [16, 0] },
    { name: 'head', elements: 4, stored: [1, 3], nbytes: [4, 12] }
  ],
  total: { name: 'all layers', elements: 8, stored: [5, 3], nbytes: [20, 12] }
};
const EMPTY: ShardTable = { ...TABLE, rows: [] };

/** The section, drawn from `payload.table`. */
function section(payload: { table: ShardTable }, kept = new Map<string, unknown>()) {
  const memory: IMemory = {
    get: key => kept.get(key),
    set: (k, v) => void kept.set(k, v)
  };
  const view = shards.create({
    source: {} as IRunSource,
    trans: english,
    memory,
    logRequests: new Emitter(),
    read: <Name extends keyof Parts>() => payload.table as unknown as Parts[Name]
  });
  view.update();
  return { ...view, node: view.node as HTMLDetailsElement };
}

const texts = (node: HTMLElement, selector: string) =>
  [...node.querySelectorAll(selector)].map(found => found.textContent);

test('a row for each layer, and a column for each rank', () => {
  const { node } = section({ table: TABLE });
  expect(texts(node, 'thead th')).toEqual([
    'Layer',
    'Parameters',
    'rank 0 dp 0\npp 0',
    'rank 1 dp 0\npp 1'
  ]);
  expect(texts(node, 'tbody th')).toEqual(['layers.0', 'head']);
  expect(texts(node, 'tbody td')).toEqual(['4', '100 %', '0 %', '4', '25 %', '75 %']);
  expect(texts(node, 'tfoot td')).toEqual(['8', '20 bytes', '12 bytes']);
  const cell = node.querySelectorAll<HTMLElement>('.nbmgpu-share')[2];
  expect(cell.title).toBe('rank 0 stores 4 bytes of head');
  expect(cell.style.getPropertyValue('--nbmgpu-share')).toBe('25%');
});

test('rows and columns have headers, and the table has a name', () => {
  const { node } = section({ table: TABLE });
  expect(texts(node, 'th:not([scope])')).toEqual([]);
  expect(node.querySelector('table')?.getAttribute('aria-label')).not.toBe('');
  expect(node.querySelector('[role=region]')?.getAttribute('tabindex')).toBe('0');
});

test('it is folded at first, and hidden where ranks store all parameters', () => {
  const payload = { table: EMPTY };
  const { node, update } = section(payload);
  expect([node.open, node.hidden]).toEqual([false, true]);
  payload.table = TABLE;
  update();
  expect([node.open, node.hidden]).toEqual([false, false]);
});

test('it is drawn only when it has changed, and remembers that it was unfolded', () => {
  const kept = new Map<string, unknown>();
  const payload = { table: TABLE };
  const { node, update } = section(payload, kept);
  const drawn = node.querySelector('table');
  update();
  expect(node.querySelector('table')).toBe(drawn);
  node.open = true;
  node.dispatchEvent(new Event('toggle'));
  expect(section(payload, kept).node.open).toBe(true);
});
