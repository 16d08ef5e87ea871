import { beforeEach, expect, test, vi } from 'vitest';

import type { ComparedRun, CurveLine, RunComparison } from '../../generated/report';
import { english } from '../source';
import { mountRunComparison } from './mount';

// jsdom has no canvas: of uPlot, only what aligns the data is real.
vi.mock('uplot', async importOriginal => {
  vi.stubGlobal('matchMedia', () => ({
    addEventListener: vi.fn(),
    removeEventListener: vi.fn()
  }));
  const { default: real } = await importOriginal<{ default: { join: unknown } }>();
  class Plot {
    static readonly join = real.join;
    readonly cursor = { idx: null };
    readonly batch = vi.fn();
    readonly destroy = vi.fn();
  }
  return { default: Plot };
});

beforeEach(() => {
  vi.stubGlobal(
    'ResizeObserver',
    class {
      readonly observe = vi.fn();
      readonly disconnect = vi.fn();
    }
  );
  vi.spyOn(HTMLElement.prototype, 'clientWidth', 'get').mockReturnValue(300);
});

function packed(...pairs: [number, number][]): string {
  const bytes = new Uint8Array(new Float32Array(pairs.flat()).buffer);
  return btoa(String.fromCharCode(...bytes));
}

/** A comparison of runs of these names, with a curve of each metric, whose last value is its place. */
function comparison(names: string[], metrics: string[]): RunComparison {
  const line = (place: number) =>
    ({
      points: packed([1, 5], [2, 9 + place], [3, place]),
      last: String(place)
    }) as CurveLine;
  return {
    runs: names.map(name => ({
      ...({ headline: 'ddp', axes: {} } as ComparedRun),
      ...{ id: name, title: name, labels: { name, tags: [], note: '' } }
    })),
    columns: [],
    metrics: metrics.map(name => ({
      name,
      runs: names.map((_, index) => index),
      lines: names.map((_, index) => line(index))
    })),
    hidden: 0,
    cells: names.map(() => ({ lines: [] })),
    missing: []
  };
}

/** Wait until all charts are drawn. */
async function drawn(): Promise<void> {
  for (let frame = 0; frame < 10; frame += 1) {
    await new Promise(requestAnimationFrame);
  }
}

test.each([1, 3])('a run leaves a comparison of %i metric(s)', async count => {
  const node = document.body.appendChild(document.createElement('div'));
  const metrics = ['loss', 'accuracy', 'f1'].slice(0, count);
  const actions = { open: vi.fn(), remove: vi.fn() };
  const view = mountRunComparison(node, actions, english);
  view.update(comparison(['a', 'b', 'c'], metrics));
  await drawn();
  const labels = () =>
    [...node.querySelectorAll('.nbmgpu-chart-plot')].map(
      plot => plot.getAttribute('aria-label') ?? ''
    );
  expect(labels()).toHaveLength(count);
  for (const label of labels()) {
    expect(label).toContain('b 1, c 2 after');
    expect(label).toContain('c: lowest 2 at 3, highest 11 at 2');
  }
  view.update(comparison(['b', 'c'], metrics));
  // Until it is drawn again, a chart does not describe the lines of before.
  expect(labels().join()).not.toContain('lowest');
  await drawn();
  for (const label of labels()) {
    expect(label).toContain('b 0, c 1 after');
    expect(label).toContain('c: lowest 1 at 3, highest 10 at 2');
    expect(label).not.toContain('a: ');
  }
  const rows = [...node.querySelectorAll<HTMLElement>('tbody tr')];
  expect(rows.map(row => row.dataset.run)).toEqual(['b', 'c']);
  view.dispose();
});
