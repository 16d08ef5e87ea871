import type uPlot from 'uplot';

/** The value of a column at an index, or the nearest one within the column's points. */
export function nearest(
  column: uPlot.AlignedData[number] | undefined,
  at: number
): number | null {
  const from = column ? column.length : 0;
  for (let by = 0; by < from; by += 1) {
    const value = column?.[at - by] ?? column?.[at + by];
    if (typeof value === 'number') {
      return value;
    }
  }
  return null;
}

/** A step on the axis: `1200`, `12k`, `1.5M`. */
export function formatStep(step: number): string {
  if (!Number.isInteger(step)) {
    return '';
  }
  return step < 1e4 ? String(step) : step < 1e6 ? `${step / 1e3}k` : `${step / 1e6}M`;
}
