import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import { VirtualDOM } from '@lumino/virtualdom';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import type { RunLine } from '../../generated/report';
import { EMPTY, type IRunsState } from '../runsstate';
import type { IRunsModel } from '../tokens';
import { diskLine, DiskUsageMonitor } from './diskusage';

class Model {
  state = EMPTY;
  readonly changed = new Signal<this, IRunsState>(this);
  readonly diskUsage = vi.fn(() => Promise.resolve({ runs: 2, nbytes: 3 << 20 }));

  list(...states: string[]): void {
    const runs = states.map((state, id) => ({ id, status: { state } }));
    this.state = { ...EMPTY, listed: true, runs: runs as unknown as RunLine[] };
    this.changed.emit(this.state);
  }
}

const trans = nullTranslator.load('nbmgpu');

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

function monitor(isVisible = true) {
  const model = new Model();
  const monitor = new DiskUsageMonitor(model as unknown as IRunsModel, () => isVisible);
  return { model, monitor };
}

test('runs that begin and end are measured, not each step of them', async () => {
  const { model, monitor: disk } = monitor();
  model.list('running');
  model.list('running');
  model.list('running', 'running');
  await vi.advanceTimersByTimeAsync(5000);
  expect(model.diskUsage).toHaveBeenCalledTimes(1);
  expect(disk.usage?.runs).toBe(2);
  model.list('running', 'running');
  await vi.advanceTimersByTimeAsync(5000);
  expect(model.diskUsage).toHaveBeenCalledTimes(1);
  model.list('finished', 'running');
  await vi.advanceTimersByTimeAsync(5000);
  expect(model.diskUsage).toHaveBeenCalledTimes(2);
  disk.dispose();
  await vi.advanceTimersByTimeAsync(200_000);
  expect(model.diskUsage).toHaveBeenCalledTimes(2);
});

test('nothing is measured for a hidden sidebar', async () => {
  const { model, monitor: disk } = monitor(false);
  model.list('running');
  await vi.advanceTimersByTimeAsync(200_000);
  expect(model.diskUsage).not.toHaveBeenCalled();
  disk.dispose();
});

test('without an answer, no size is shown', async () => {
  vi.spyOn(console, 'warn').mockReturnValue();
  const { model, monitor: disk } = monitor();
  model.diskUsage.mockRejectedValue(new Error('404'));
  model.list('running');
  await vi.advanceTimersByTimeAsync(5000);
  expect(disk.usage).toBeNull();
  disk.dispose();
});

test('the line has the number of runs, their size and the folder', () => {
  const host = document.createElement('div');
  VirtualDOM.render(diskLine({ runs: 38, nbytes: 1.2 * 2 ** 30 }, '/runs', trans), host);
  expect(host.textContent).toBe('38 runs, 1.2 GiB');
  expect(host.querySelector<HTMLElement>('div')?.title).toContain('/runs');
});
