import { expect, test, vi } from 'vitest';

import type { Parts, TraceRequest } from '../generated/report';
import type { ProfileRow, ProfileTable } from '../generated/runs';
import { Emitter } from './emitter';
import { profile } from './profile';
import { english, type IMemory, type IRunSource } from './source';
import { allParts } from './tracedownload';

const ROW: ProfileRow = {
  rank: 0,
  steps: '5-10',
  step_time: 0.02,
  compute: 0.01,
  communication: 0.005,
  hidden: 0.001,
  data: 0.004,
  host: 0.001,
  trace: '/runs/1/trace_rank0.json.gz',
  nbytes: 2048
};
const TABLE: ProfileTable = { rows: [ROW, { ...ROW, rank: 1, nbytes: 4096 }] };

/** The section, drawn from `payload.table`. */
function section(
  payload: { table: ProfileTable },
  source: Partial<IRunSource> = {},
  kept = new Map<string, unknown>()
) {
  const memory: IMemory = {
    get: key => kept.get(key),
    set: (k, v) => void kept.set(k, v)
  };
  const view = profile.create({
    source: source as IRunSource,
    trans: english,
    memory,
    logRequests: new Emitter(),
    read: <Name extends keyof Parts>(part: Name) =>
      (part === 'about' ? { id: 'a-run' } : payload.table) as unknown as Parts[Name]
  });
  view.update();
  return { ...view, node: view.node as HTMLDetailsElement };
}

const texts = (node: HTMLElement, selector: string) =>
  [...node.querySelectorAll(selector)].map(found => found.textContent);

test('a row for each rank, whose parts are shares of the step', () => {
  const { node } = section({ table: TABLE });
  expect(texts(node, 'tbody th')).toEqual(['0', '1']);
  expect(texts(node, 'tbody tr:first-child td')).toEqual([
    '20 ms',
    '10 ms',
    '5 ms',
    '4 ms',
    '1 ms',
    '1 ms',
    '2.0 KiB'
  ]);
  expect(texts(node, 'thead th')).toHaveLength(8);
  const cell = node.querySelector<HTMLElement>('.nbmgpu-share');
  expect(cell?.style.getPropertyValue('--nbmgpu-share')).toBe('50%');
  expect(node.textContent).toContain('steps 5-10');
});

test('rows and columns have headers, and the table has a name', () => {
  const { node } = section({ table: TABLE });
  expect(texts(node, 'th:not([scope])')).toEqual([]);
  expect(node.querySelector('table')?.getAttribute('aria-label')).not.toBe('');
  expect(node.querySelector('[role=region]')?.getAttribute('tabindex')).toBe('0');
});

test('it is hidden without a profile, unfolded with one, and remembers that it was folded', () => {
  const kept = new Map<string, unknown>();
  const payload = { table: { rows: [] } as ProfileTable };
  const { node, update } = section(payload, {}, kept);
  expect(node.hidden).toBe(true);
  payload.table = TABLE;
  update();
  expect([node.open, node.hidden]).toEqual([true, false]);
  node.open = false;
  node.dispatchEvent(new Event('toggle'));
  expect(section(payload, {}, kept).node.open).toBe(false);
});

test('a button downloads the trace of its rank', () => {
  const asked: number[] = [];
  const clicked = vi
    .spyOn(HTMLAnchorElement.prototype, 'click')
    .mockImplementation(() => undefined);
  const traceUrl = (rank: number) => {
    asked.push(rank);
    return `/traces/${rank}`;
  };
  const { node } = section({ table: TABLE }, { traceUrl });
  const buttons = [...node.querySelectorAll('button')];
  expect(buttons.map(each => each.getAttribute('aria-label'))).toEqual([
    'Download the trace of rank 0, 2.0 KiB',
    'Download the trace of rank 1, 4.0 KiB'
  ]);
  buttons[1].click();
  expect(asked).toEqual([1]);
  expect(clicked).toHaveBeenCalledOnce();
});

test('a failed download says why', async () => {
  const tracePart = () => Promise.reject(new Error('the kernel does not respond'));
  const { node } = section({ table: TABLE }, { tracePart });
  node.querySelector('button')?.click();
  await vi.waitFor(() =>
    expect(node.querySelector('[role=status]')?.textContent).toContain('does not respond')
  );
});

test('a trace is assembled from its parts', async () => {
  const bytes = [31, 139, 8, 255, 0];
  const asked: number[] = [];
  const request = ({ offset }: TraceRequest) => {
    asked.push(offset);
    const part = bytes.slice(offset, offset + 2);
    const content = btoa(String.fromCharCode(...part));
    return Promise.resolve({ content, end: offset + part.length, size: bytes.length });
  };
  const shares: number[] = [];
  const parts = await allParts(request, 0, 0, share => shares.push(share));
  expect(parts.flatMap(part => [...part])).toEqual(bytes);
  expect(asked).toEqual([0, 2, 4]);
  expect(shares).toEqual([0.4, 0.8, 1]);
  const removed = () => Promise.resolve({ content: '', end: 0, size: 0 });
  await expect(allParts(removed, 0, 0, () => undefined)).rejects.toThrow('removed');
});
