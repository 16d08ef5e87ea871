import { expect, test } from 'vitest';

import { extremesOf, markedExtremes } from './chartmarks';

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

const STEPS = [0, 1, 2];

test('each of five lines is marked', () => {
  const lines = [0, 1, 2, 3, 4].map(by => [by, by + 5, by + 1]);
  const each = { lowest: 0, highest: 1 };
  expect(markedExtremes(STEPS, lines, null)).toEqual([each, each, each, each, each]);
});

test('of more lines, the lowest and the highest value of all is marked', () => {
  const lines = [2, 1, 0, 5, 4, 3].map(by => [by, by + 5, by + 1]);
  const found = markedExtremes(STEPS, lines, null);
  expect(found).toEqual([null, null, { lowest: 0 }, { highest: 1 }, null, null]);
  const one = [[-1, 19, 1], ...lines];
  expect(markedExtremes(STEPS, one, null)[0]).toEqual({ lowest: 0, highest: 1 });
});

test('lines without extremes leave the others their marks', () => {
  const equal = Array.from({ length: 6 }, () => [7, 7, 7]);
  expect(markedExtremes(STEPS, equal, null)).toEqual(equal.map(() => null));
  const found = markedExtremes(STEPS, [...equal, [1, 2, 3]], null);
  expect(found.at(-1)).toEqual({ lowest: 0, highest: 2 });
});
