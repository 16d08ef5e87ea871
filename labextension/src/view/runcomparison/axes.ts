import type { Axes, ComparedRun } from '../../generated/report';
import type { IAxis } from '../chartspec';
import { formatDuration, formatNumber, formatSeconds } from '../format';
import { unpack, type IPoints } from '../points';
import { interpolated } from '../smoothing';

/** The axes on which curves of several runs can be compared. */
export const AXES = ['step', 'epochs', 'samples', 'seconds'] as const;
export type AxisName = (typeof AXES)[number];

/** The step, and the axes that are known of every one of `runs`, which have curves. */
export function knownAxes(runs: readonly ComparedRun[]): AxisName[] {
  return AXES.filter(
    name => name === 'step' || (runs.length > 0 && runs.every(run => !!run.axes[name]))
  );
}

/** An axis for charts whose line `i` is of the run at `lines[i]`; undefined for the step. */
export function axisOf(
  name: AxisName,
  title: string,
  runs: readonly ComparedRun[],
  lines: readonly number[]
): IAxis | undefined {
  if (name === 'step') {
    return undefined;
  }
  return {
    key: `${name} ${lines.map(run => runs[run].axes[name]).join(' ')}`,
    title,
    place: (points, line) => placed(points, runs[lines[line]].axes[name]),
    format: position => formatPosition(position, name)
  };
}

/** Replace steps by their positions on an axis. */
function placed(points: IPoints, packed: Axes[keyof Axes]): IPoints {
  const known = unpack(packed);
  return { x: extrapolated(known, points.x), y: points.y };
}

/** Positions between known ones, and beyond the ends at the same pace. */
export function extrapolated(known: IPoints, steps: number[]): number[] {
  const { x, y } = known;
  const last = x.length - 1;
  const pace = (from: number, to: number): number =>
    (y[to] - y[from]) / Math.max(x[to] - x[from], 1e-9);
  return interpolated(known, steps).map((position, index) => {
    const step = steps[index];
    if (step < x[0]) {
      return y[0] + (step - x[0]) * pace(0, 1);
    }
    return step > x[last] ? y[last] + (step - x[last]) * pace(last - 1, last) : position;
  });
}

function formatPosition(position: number, name: AxisName): string {
  if (name === 'seconds') {
    return position < 60 ? formatSeconds(position) : formatDuration(position);
  }
  return formatNumber(name === 'samples' ? Math.round(position) : position);
}
