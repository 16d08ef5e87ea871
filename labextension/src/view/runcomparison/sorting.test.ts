import { expect, test } from 'vitest';

import type { Column } from '../../generated/report';
import { bestPlaces, sortedPlaces } from './sorting';

function column(best: Column['best'], ...values: (number | string | null)[]): Column {
  const cells = values.map(value => ({
    text: value === null ? '' : String(value),
    value: typeof value === 'number' ? value : null
  }));
  return { group: 'result', name: 'x', cells, differs: true, best };
}

test('numbers are sorted by size, then texts, and unknown values are last', () => {
  const columns = [column('', 10, null, 9, 'none')];
  const up = { name: 'x', direction: 'up' } as const;
  expect(sortedPlaces(columns, 4, up)).toEqual([2, 0, 3, 1]);
  expect(sortedPlaces(columns, 4, { ...up, direction: 'down' })).toEqual([0, 2, 3, 1]);
  expect(sortedPlaces(columns, 4, null)).toEqual([0, 1, 2, 3]);
  expect(sortedPlaces(columns, 4, { ...up, name: 'y' })).toEqual([0, 1, 2, 3]);
});

test('the best values are the lowest or highest, and none where all are equal', () => {
  expect(bestPlaces(column('lowest', 2, 1, null, 1))).toEqual([1, 3]);
  expect(bestPlaces(column('highest', 2, 1))).toEqual([0]);
  expect(bestPlaces(column('', 2, 1))).toEqual([]);
  expect(bestPlaces({ ...column('lowest', 1, 1), differs: false })).toEqual([]);
});
