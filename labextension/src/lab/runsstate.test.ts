import { expect, test } from 'vitest';

import type { RunLine } from '../generated/report';
import type { Update } from '../generated/server';
import {
  EMPTY,
  endedRuns,
  isKnownToBeGone,
  isKnownToBeOver,
  matchingRuns,
  runningRuns,
  withLabels,
  withUpdate,
  withOlder,
  withoutRun
} from './runsstate';

function line(id: string, over: boolean, created = Number(id)): RunLine {
  return { id, status: { over }, created } as RunLine;
}

function update(runs: RunLine[], rest: Partial<Update> = {}): Update {
  return { devices: [], runs, gone: [], more: false, problems: [], ...rest };
}

const ids = (runs: readonly RunLine[]): string[] => runs.map(run => run.id);

test('runs are sorted newest first, and an entry replaces the older entry of its run', () => {
  const first = withUpdate(EMPTY, update([line('1', true), line('3', false)]));
  const second = withUpdate(first, update([line('4', false), line('3', true)]));
  expect(ids(second.runs)).toEqual(['4', '3', '1']);
  expect(second.runs[1].status.over).toBe(true);
  expect(second.connection).toBe('live');
});

test('removed runs are dropped', () => {
  const state = withUpdate(EMPTY, update([line('1', true), line('2', true)]));
  expect(ids(withUpdate(state, update([], { gone: ['2'] })).runs)).toEqual(['1']);
  expect(ids(withoutRun(state, '1').runs)).toEqual(['2']);
});

test('older runs are appended, and later updates do not change `more`', () => {
  const state = withUpdate(EMPTY, update([line('5', true)], { more: true }));
  expect(state.more).toBe(true);
  const all = withOlder(state, {
    runs: [line('2', true), line('1', true)],
    more: false
  });
  expect(ids(all.runs)).toEqual(['5', '2', '1']);
  expect(withUpdate(all, update([], { more: true })).more).toBe(false);
});

test('a run ends once, and a run first seen when it was over does not end', () => {
  const before = withUpdate(EMPTY, update([line('1', false), line('2', false)]));
  expect(endedRuns(EMPTY, before)).toEqual([]);
  const after = withUpdate(before, update([line('1', true), line('3', true)]));
  expect(ids(endedRuns(before, after))).toEqual(['1']);
  expect(endedRuns(after, after)).toEqual([]);
  expect(ids(runningRuns(after))).toEqual(['2']);
});

test('a run that is not in the list is over only if it is older than the list', () => {
  const runs = [line('5', false), line('4', true)];
  const state = withUpdate(EMPTY, update(runs, { more: true }));
  const over = ['3', '4', '5', '6'].filter(id => isKnownToBeOver(state, id));
  expect(over).toEqual(['3', '4']);
  expect(isKnownToBeOver({ ...state, more: false }, '3')).toBe(false);
  expect(isKnownToBeOver(EMPTY, '3')).toBe(false);
  expect(isKnownToBeOver(withUpdate(EMPTY, update([])), '3')).toBe(false);
});

test('a filter finds runs by all of its words, in any text and case', () => {
  const run = (id: string, name: string, tags: string[], headline: string): RunLine =>
    ({
      ...line(id, true),
      title: 'for x in loader:',
      headline,
      notebook: 'train.ipynb',
      status: { label: 'finished' },
      labels: { name, tags, note: '' }
    }) as unknown as RunLine;
  const runs = [
    run('1', 'small lr', ['sweep'], 'ddp on 2 ranks (cpu)'),
    run('2', 'large lr', ['sweep', 'best'], 'fsdp on 2 ranks (cpu)')
  ];
  expect(ids(matchingRuns(runs, ''))).toEqual(['1', '2']);
  expect(ids(matchingRuns(runs, ' SWEEP  fsdp '))).toEqual(['2']);
  expect(ids(matchingRuns(runs, 'train.ipynb finished lr'))).toEqual(['1', '2']);
  expect(ids(matchingRuns(runs, 'ddp best'))).toEqual([]);
  const state = withLabels({ ...EMPTY, runs }, '1', { name: 'a', tags: [], note: '' });
  expect(state.runs.map(each => each.labels.name)).toEqual(['a', 'large lr']);
});

test('a run that is not in the list is gone only if the list has runs as old as it', () => {
  const state = withUpdate(
    EMPTY,
    update([line('5', true), line('3', true)], { more: true })
  );
  expect(['2', '3', '4', '6'].filter(id => isKnownToBeGone(state, id))).toEqual([
    '4',
    '6'
  ]);
  expect(isKnownToBeGone({ ...state, more: false }, '2')).toBe(true);
  // Before the server has sent its list, and with an empty one.
  expect(isKnownToBeGone({ ...EMPTY, connection: 'live' }, '2')).toBe(false);
  expect(isKnownToBeGone(withUpdate(EMPTY, update([])), '2')).toBe(true);
});
