import { expect, test } from 'vitest';

import { extremesOf } from './chartmarks';

test('the first lowest and the first highest value are found', () => {
  const values = [2, 5, 1, 5, 1];
  expect(extremesOf([0, 1, 2, 3, 4], values, null)).toEqual({ lowest: 2, highest: 1 });
});

test('values that are not drawn are left out', () => {
  const values = [null, 3, undefined, 2, 4];
  expect(extremesOf([0, 1, 2, 3, 4], values, null)).toEqual({ lowest: 3, highest: 4 });
});

test('only the zoomed range counts', () => {
  const values = [9, 3, 2, 4, 0];
  expect(extremesOf([0, 1, 2, 3, 4], values, [1, 3])).toEqual({ lowest: 2, highest: 3 });
});

test('two points, and points that are all equal, have no extremes', () => {
  expect(extremesOf([0, 1], [1, 2], null)).toBeNull();
  expect(extremesOf([0, 1, 2], [7, 7, 7], null)).toBeNull();
  expect(extremesOf([], [], null)).toBeNull();
});
