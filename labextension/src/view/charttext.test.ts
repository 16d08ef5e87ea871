import { expect, test } from 'vitest';

import { formatIn, nearest } from './charttext';

test('the value nearest to a position is that of the nearest point of the line', () => {
  const positions = [0, 1, 2, 10, 11];
  const line = [5, null, undefined, 7, null];
  expect(nearest(line, positions, 0)).toBe(5);
  expect(nearest(line, positions, 2)).toBe(5);
  expect(nearest([5, null, null, 7, null], [0, 1, 9, 10, 11], 2)).toBe(7);
});

test('a line has no value before its first point and after its last one', () => {
  expect(nearest([null, 5, 6, null], [0, 1, 2, 3], 0)).toBeNull();
  expect(nearest([null, 5, 6, null], [0, 1, 2, 3], 3)).toBeNull();
  expect(nearest([null, null], [0, 1], 1)).toBeNull();
  expect(nearest(undefined, [0], 0)).toBeNull();
});

test.each([
  ['number', 1234.5, '1,235'],
  ['seconds', 0.25, '250 ms'],
  ['percent', 97.4, '97 %'],
  ['bytes', 3 << 20, '3.0 MiB'],
  ['bytes/s', 1536, '1.5 KiB/s']
] as const)('in %s, %d is %s', (unit, value, text) => {
  expect(formatIn(unit, value)).toBe(text);
});
