import type uPlot from 'uplot';
import type { IChart } from './chartspec';
import { formatBytes, formatNumber, formatSeconds } from './format';

type Column = uPlot.AlignedData[number];

/**
 * The value of a line at the position of an index, or that of its nearest point.  A line has no
 * value before its first point and after its last one.
 */
export function nearest(
  column: Column | undefined,
  positions: Column,
  at: number
): number | null {
  const point = (by: number): number => {
    let index = at;
    while (
      column &&
      index >= 0 &&
      index < column.length &&
      typeof column[index] !== 'number'
    ) {
      index += by;
    }
    return index;
  };
  const [before, after] = [point(-1), point(1)];
  const [left, right] = [column?.[before], column?.[after]];
  if (typeof left !== 'number' || typeof right !== 'number') {
    return null;
  }
  const distance = (index: number): number =>
    Math.abs(Number(positions[index]) - Number(positions[at]));
  return distance(before) <= distance(after) ? left : right;
}

/** A step on the axis: `1200`, `12k`, `1.5M`. */
export function formatStep(step: number): string {
  if (!Number.isInteger(step)) {
    return '';
  }
  return step < 1e4 ? String(step) : step < 1e6 ? `${step / 1e3}k` : `${step / 1e6}M`;
}

/** Format a value of a chart in its unit. */
export function formatIn(unit: IChart['unit'], value: number): string {
  switch (unit) {
    case 'number':
      return formatNumber(value);
    case 'seconds':
      return formatSeconds(value);
    case 'percent':
      return `${Math.round(value)} %`;
    case 'bytes':
      return formatBytes(value);
    case 'bytes/s':
      return `${formatBytes(value)}/s`;
  }
}
