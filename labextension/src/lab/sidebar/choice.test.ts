import type { IStateDB } from '@jupyterlab/statedb';
import { expect, test, vi } from 'vitest';

import type { RunLine } from '../../generated/report';
import { EMPTY, type IRunsState } from '../runsstate';
import { RunChoice, STATE_ID } from './choice';
import { NO_FILTERS } from './filters';

function database(kept?: unknown) {
  const save = vi.fn((_id: string, _value: unknown) => Promise.resolve());
  const fetch = vi.fn(() => Promise.resolve(kept));
  return { save, database: { fetch, save } as unknown as IStateDB };
}

function listed(ids: string[], more = false): IRunsState {
  const runs = ids.map(id => ({ id }) as RunLine);
  return { ...EMPTY, connection: 'live', listed: true, runs, more };
}

async function restored(kept: unknown): Promise<RunChoice> {
  const choice = new RunChoice(database(kept).database);
  await Promise.resolve();
  return choice;
}

test('filters and selection are kept, and come back', async () => {
  const { database: first, save } = database();
  const choice = new RunChoice(first);
  choice.filter({ strategy: 'ddp' });
  choice.filter({ text: 'lr' });
  choice.select(['2', '1'], true);
  const [id, kept] = save.mock.lastCall!;
  expect(id).toBe(STATE_ID);
  const again = await restored(JSON.parse(JSON.stringify(kept)));
  expect(again.filters).toEqual({ ...NO_FILTERS, strategy: 'ddp', text: 'lr' });
  expect(again.listedIds(listed(['3', '2', '1']))).toEqual(['1', '2']);
});

test.each([
  undefined,
  null,
  1,
  [],
  { filters: 3 },
  { selected: 'x' },
  { filters: { text: 1, state: {} }, selected: [1] }
])('a kept state of another form is none: %j', async kept => {
  const choice = await restored(kept);
  expect(choice.filters).toEqual(NO_FILTERS);
  expect(choice.listedIds(listed(['1']))).toEqual([]);
});

test('what was chosen before the kept state is read stays', async () => {
  const choice = new RunChoice(database({ selected: ['1'] }).database);
  choice.select(['2'], true);
  await Promise.resolve();
  expect(choice.listedIds(listed(['2', '1']))).toEqual(['2']);
});

test('deleted runs leave the selection, once the server has sent its list', () => {
  const choice = new RunChoice();
  choice.select(['1', '3', '5'], true);
  choice.forgetGone({ ...EMPTY, connection: 'live' });
  // Run 1 may be older than the list.
  choice.forgetGone(listed(['5', '4', '2'], true));
  expect(['1', '3', '5'].map(id => choice.isSelected(id))).toEqual([true, false, true]);
  choice.forgetGone(listed(['5', '4', '2']));
  expect(choice.isSelected('1')).toBe(false);
});

test('none, some or all of the shown runs are selected', () => {
  const choice = new RunChoice();
  const { runs } = listed(['2', '1']);
  choice.select(['9'], true);
  expect(choice.extent(runs)).toBe('none');
  choice.select(['1'], true);
  expect(choice.extent(runs)).toBe('some');
  choice.select(['2', '1'], true);
  expect(choice.extent(runs)).toBe('all');
  expect(choice.extent([])).toBe('none');
  choice.clear();
  expect(choice.extent(runs)).toBe('none');
});
