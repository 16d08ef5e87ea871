import uPlot from 'uplot';
import type { IScaling } from './chartspec';
import { drawable, type IPoints } from './points';
import { interpolated, smoothed } from './smoothing';

/** A line in its chart: its points, and fewer, mean ones for smoothing, where there are many. */
export interface IPlacedLine {
  readonly points: IPoints;
  readonly means: IPoints | null;
}

/** Columns of positions and, for each line, values and smoothed values. */
export function alignedData(
  lines: readonly IPlacedLine[],
  { smoothing, log }: IScaling
): uPlot.AlignedData {
  const tables = lines.map(({ points, means }): uPlot.AlignedData => {
    const even = smoothing ? smoothed(means ?? points, smoothing) : null;
    const soft = even
      ? drawable(interpolated(even, points.x), log)
      : points.x.map(() => null);
    return [points.x, drawable(points.y, log), soft];
  });
  return tables.length === 1 ? tables[0] : uPlot.join(tables);
}

/** The column with the values of a line. */
export function valueColumn(line: number): number {
  return 2 * line + 1;
}
