import { expect, test } from 'vitest';

import { sparkline } from './sparkline';

test('a curve fills its box, high values at the top', () => {
  const points: [number, number][] = [
    [0, 1],
    [5, 3],
    [10, 2]
  ];
  expect(sparkline(points, 60, 20)).toBe('M0.0 20.0L30.0 0.0L60.0 10.0');
});

test('equal values are a line in the middle', () => {
  const points: [number, number][] = [
    [3, 7],
    [4, 7]
  ];
  expect(sparkline(points, 60, 20)).toBe('M0.0 10.0L60.0 10.0');
});

test('nonfinite values are omitted, and one point is no curve', () => {
  const points: [number, number][] = [
    [0, NaN],
    [1, 2],
    [2, Infinity]
  ];
  expect(sparkline(points, 60, 20)).toBe('');
});
