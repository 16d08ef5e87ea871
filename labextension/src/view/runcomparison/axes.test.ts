import { expect, test } from 'vitest';

import type { ComparedRun } from '../../generated/report';
import { axisOf, extrapolated, knownAxes } from './axes';

function packed(...pairs: [number, number][]): string {
  const bytes = new Uint8Array(new Float32Array(pairs.flat()).buffer);
  return btoa(String.fromCharCode(...bytes));
}

function run(seconds: string, epochs = ''): ComparedRun {
  return { axes: { seconds, epochs, samples: '' } } as ComparedRun;
}

test('an axis is offered if it is known of every run', () => {
  const times = packed([1, 0.5], [11, 2.5]);
  expect(knownAxes([run(times, times), run(times)])).toEqual(['step', 'seconds']);
  expect(knownAxes([])).toEqual(['step']);
});

test('steps are placed between known ones, and beyond them at the same pace', () => {
  const known = { x: [1, 11], y: [0.5, 2.5] };
  expect(extrapolated(known, [0, 1, 6, 11, 16])).toEqual([0.3, 0.5, 1.5, 2.5, 3.5]);
});

test('each line of a chart is placed by the axis of its own run', () => {
  const runs = [run(packed([0, 0], [10, 10])), run(packed([0, 0], [10, 20]))];
  const axis = axisOf('seconds', 'Time', runs, [1, 0])!;
  const points = { x: [5, 10], y: [1, 2] };
  expect(axis.place(points, 0)).toEqual({ x: [10, 20], y: [1, 2] });
  expect(axis.place(points, 1).x).toEqual([5, 10]);
  expect(axis.format(75)).toBe('1:15');
  expect(axisOf('step', 'Step', runs, [0])).toBeUndefined();
});
