import { expect, test } from 'vitest';

import type { RunLine } from '../../generated/report';
import { choices, filteredRuns, isFiltering, NO_FILTERS } from './filters';

function line(
  id: string,
  notebook: string,
  strategy: string,
  state: string,
  name = ''
): RunLine {
  return {
    id,
    notebook,
    strategy,
    status: { state, label: state },
    headline: `${strategy} on 2 ranks (cpu)`,
    labels: { name, tags: [], note: '' }
  } as unknown as RunLine;
}

const RUNS = [
  line('1', '/work/a/train.ipynb', 'ddp', 'finished', 'small lr'),
  line('2', '/work/b/train.ipynb', 'fsdp', 'failed', 'small lr'),
  line('3', '/work/a/train.ipynb', 'fsdp', 'finished', 'large lr'),
  line('4', '', 'ddp', 'timeout')
];

const ids = (filters: Partial<typeof NO_FILTERS>): string[] =>
  filteredRuns(RUNS, { ...NO_FILTERS, ...filters }).map(run => run.id);
const texts = (...args: Parameters<typeof choices>): string[] =>
  choices(...args).map(choice => choice.text);

test('a run must meet all filters, the words included', () => {
  expect(ids({})).toEqual(['1', '2', '3', '4']);
  expect(ids({ strategy: 'fsdp' })).toEqual(['2', '3']);
  expect(ids({ strategy: 'fsdp', state: 'finished' })).toEqual(['3']);
  expect(ids({ notebook: '/work/a/train.ipynb', text: 'small' })).toEqual(['1']);
  expect(ids({ notebook: '' })).toEqual(['4']);
  expect(ids({ state: 'failed', text: 'large' })).toEqual([]);
});

test('blank words are no filter, an unknown notebook is one', () => {
  expect(isFiltering({ ...NO_FILTERS, text: ' ' })).toBe(false);
  expect(isFiltering({ ...NO_FILTERS, notebook: '' })).toBe(true);
});

test('the values that occur can be chosen, and the one that is chosen', () => {
  expect(texts(RUNS, 'strategy', null)).toEqual(['ddp', 'fsdp']);
  expect(texts(RUNS, 'state', null)).toEqual(['failed', 'finished', 'timed out']);
  expect(texts(RUNS, 'state', 'lost')).toContain('lost');
});

test('notebooks have the part of their path that distinguishes them', () => {
  expect(texts(RUNS, 'notebook', null)).toEqual([
    'a/train.ipynb',
    'b/train.ipynb',
    'not from a notebook'
  ]);
  expect(texts(RUNS.slice(0, 1), 'notebook', null)).toEqual(['train.ipynb']);
  const nested = [...RUNS, line('5', 'train.ipynb', 'ddp', 'finished')];
  expect(texts(nested, 'notebook', null)).toContain('train.ipynb');
});
