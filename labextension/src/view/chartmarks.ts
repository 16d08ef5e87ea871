import type uPlot from 'uplot';

/** Points from which on the lowest and the highest are marked. */
const MIN_POINTS = 3;

/** Lines up to which each has its extremes marked; of more lines, those of the whole chart are. */
const MARKED_LINES = 5;

/** Radius of a mark, in pixels. */
const RADIUS = 3.5;

/** Indices of the lowest and the highest value of a line, if they are marked. */
export interface IExtremes {
  readonly lowest?: number;
  readonly highest?: number;
}

type Column = uPlot.AlignedData[number];

/**
 * The first lowest and the first highest of the values whose position is in `range`.  None of fewer
 * than three points, and none where all are equal.
 */
export function extremesOf(
  positions: Column,
  values: Column,
  range: readonly [number, number] | null
): IExtremes | null {
  let [count, lowest, highest] = [0, -1, -1];
  for (let index = 0; index < values.length; index += 1) {
    const [at, value] = [Number(positions[index]), values[index]];
    if (typeof value !== 'number' || (range && (at < range[0] || at > range[1]))) {
      continue;
    }
    count += 1;
    lowest = lowest < 0 || value < Number(values[lowest]) ? index : lowest;
    highest = highest < 0 || value > Number(values[highest]) ? index : highest;
  }
  const differ = count >= MIN_POINTS && values[lowest] !== values[highest];
  return differ ? { lowest, highest } : null;
}

/**
 * The marked values of a chart whose lines are of the same kind: the extremes of each of a few
 * lines. Rings on many lines would hide them, so of more lines only the lowest and the highest value
 * of all is marked.
 */
export function markedExtremes(
  positions: Column,
  lines: readonly Column[],
  range: readonly [number, number] | null
): (IExtremes | null)[] {
  const each = lines.map(values => extremesOf(positions, values, range));
  if (lines.length <= MARKED_LINES) {
    return each;
  }
  const valueAt = (line: number, of: keyof IExtremes): number =>
    Number(lines[line][each[line]?.[of] ?? -1]);
  const known = [...lines.keys()].filter(line => each[line]);
  const first = (of: keyof IExtremes, sign: 1 | -1): number | undefined =>
    known.reduce<number | undefined>(
      (best, line) =>
        best === undefined || sign * valueAt(line, of) < sign * valueAt(best, of)
          ? line
          : best,
      undefined
    );
  const [lowest, highest] = [first('lowest', 1), first('highest', -1)];
  return each.map((found, line) => {
    const kept = {
      ...(line === lowest && { lowest: found?.lowest }),
      ...(line === highest && { highest: found?.highest })
    };
    return line === lowest || line === highest ? kept : null;
  });
}

/** The indices of some extremes. */
export function marksOf(extremes: IExtremes | null): number[] {
  return [extremes?.lowest, extremes?.highest].filter(index => index !== undefined);
}

/** A line with marks. */
export interface IMarkedLine {
  readonly extremes: IExtremes | null;
  /** Its place in the data. */
  readonly column: number;
  readonly color: string;
}

/** Draw a ring at the lowest and the highest point of each line. */
export function drawMarks(plot: uPlot, lines: readonly IMarkedLine[]): void {
  const { ctx } = plot;
  const scale = window.devicePixelRatio || 1;
  ctx.save();
  ctx.lineWidth = 1.5 * scale;
  ctx.setLineDash([]);
  for (const { extremes, column, color } of lines) {
    ctx.strokeStyle = color;
    for (const index of marksOf(extremes)) {
      const [x, y] = [plot.data[0][index], plot.data[column][index]];
      if (typeof y !== 'number') {
        continue;
      }
      ctx.beginPath();
      const [left, top] = [plot.valToPos(x, 'x', true), plot.valToPos(y, 'y', true)];
      ctx.arc(left, top, RADIUS * scale, 0, 2 * Math.PI);
      ctx.stroke();
    }
  }
  ctx.restore();
}
