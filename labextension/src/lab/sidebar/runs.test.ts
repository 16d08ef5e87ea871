import { nullTranslator } from '@jupyterlab/translation';
import { h, VirtualDOM } from '@lumino/virtualdom';
import { expect, test, vi } from 'vitest';

import type { RunLine } from '../../generated/report';
import { CommandIDs } from '../commandids';
import { runList } from './runs';

const RUN: RunLine = {
  id: '20260101-120000-abc',
  status: {
    state: 'running',
    label: 'running',
    tone: 'busy',
    elapsed: '1:05',
    remaining: 'about 3:05 left',
    over: false,
    stopping: ''
  },
  strategy: 'ddp',
  world_size: 2,
  title: 'for epoch in range(3):',
  headline: 'ddp on 2 ranks (cpu)',
  notebook: '/home/me/work/train.ipynb',
  created: 1000,
  duration: 65,
  kernel: { pid: 1, create_time: 1, alive: true },
  progress: 0.25,
  curve: {
    name: 'loss',
    points: [
      [0, 2],
      [1, 1]
    ],
    last: '1.0'
  },
  failure: '',
  labels: { name: '', tags: [], note: '' }
};

function draw(runs: RunLine[], host = document.createElement('div')) {
  const execute = vi.fn();
  const select = vi.fn();
  const trans = nullTranslator.load('nbmgpu');
  VirtualDOM.render(
    h.div(
      runList(runs, {
        trans,
        execute,
        select,
        language: 'en',
        now: 1200,
        icon: () => undefined
      })
    ),
    host
  );
  const button = (name: string): HTMLButtonElement | null =>
    host.querySelector(`button[title="${name}"]`);
  return { host, execute, select, button };
}

test('a running run shows its progress, and can be stopped but not deleted', () => {
  const { host, execute, button } = draw([RUN]);
  expect(host.textContent).toContain('train.ipynb');
  expect(host.textContent).toContain('1:05 · about 3:05 left');
  expect(host.querySelector('[role=progressbar]')?.ariaValueNow ?? '25').toBe('25');
  expect(host.querySelector('path')?.getAttribute('d')).toBe('M0.0 0.0L88.0 24.0');
  expect(button('Delete')).toBeNull();
  button('Stop')!.click();
  expect(execute).toHaveBeenCalledWith(CommandIDs.stopRun, RUN.id);
});

test('a finished run shows its time and cause of failure, and can be deleted', () => {
  const failed: RunLine = {
    ...RUN,
    status: { ...RUN.status, over: true, tone: 'bad', label: 'failed' },
    failure: 'rank 1: oh'
  };
  const { host, execute, button } = draw([failed]);
  expect(host.textContent).toContain('3 minutes ago · took 1:05');
  expect(host.textContent).toContain('rank 1: oh');
  expect(host.querySelector('[role=progressbar]')).toBeNull();
  expect(button('Stop')).toBeNull();
  button('Delete')!.click();
  expect(execute).toHaveBeenCalledWith(CommandIDs.deleteRun, RUN.id);
});

test('running runs come before finished ones', () => {
  const status = { ...RUN.status, over: true, label: 'finished' };
  const over: RunLine = { ...RUN, id: 'over', status };
  const { host } = draw([over, RUN]);
  const cards = [...host.querySelectorAll<HTMLElement>('.nbmgpu-RunCard')];
  expect(cards.map(card => card.dataset.run)).toEqual([RUN.id, 'over']);
});

test('a second stop is forced', () => {
  const status = { ...RUN.status, label: 'stopping' };
  expect(draw([{ ...RUN, status }]).button('Force stop')).not.toBeNull();
});

test('a dead kernel and a run without a notebook are shown', () => {
  const { host, button } = draw([
    { ...RUN, kernel: { ...RUN.kernel, alive: false }, notebook: '' }
  ]);
  expect(host.textContent).toContain('kernel not running');
  expect(host.textContent).toContain('not from a notebook');
  expect(button('Show its notebook')).toBeNull();
});

test('an update keeps the nodes, and so the focus', () => {
  const { host, button } = draw([RUN]);
  document.body.append(host);
  button('Stop')!.focus();
  const newer = { ...RUN, id: '20260101-130000-abc', created: 2000 };
  draw([newer, { ...RUN, duration: 66, curve: { ...RUN.curve, last: '0.9' } }], host);
  expect(document.activeElement?.getAttribute('aria-label')).toBe(`Stop: run ${RUN.id}`);
  host.remove();
});

test('a name replaces the title, tags are shown, and a checkbox selects the run', () => {
  const labels = { name: 'small lr', tags: ['sweep', 'mnist'], note: 'worth a look' };
  const { host, select } = draw([{ ...RUN, labels }]);
  const title = host.querySelector<HTMLElement>('.nbmgpu-RunCard-title')!;
  expect(title.textContent).toBe('small lr');
  expect(title.title).toContain('worth a look');
  expect(host.querySelector('.nbmgpu-RunCard-tags')?.textContent).toBe('sweepmnist');
  document.body.append(host); // a change is reported by attached elements only
  host.querySelector<HTMLInputElement>('input[type=checkbox]')!.click();
  expect(select).toHaveBeenCalledWith(RUN.id, true);
});
