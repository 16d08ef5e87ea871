import type { IPoints } from './points';

/** The widest smoothing window, as a fraction of the run. */
const MAX_WINDOW = 0.15;

/**
 * Smooth points by an exponential moving average in both directions, so that it neither lags nor
 * is biased towards the first value.  `strength` is from 0 (unchanged) to 1.
 */
export function smoothed(points: IPoints, strength: number): IPoints {
  const { x, y } = points;
  const width = strength ** 2 * MAX_WINDOW * (x[x.length - 1] - x[0]);
  if (!(width > 0)) {
    return points;
  }
  const before = decayingSums(x, y, width);
  const after = decayingSums(
    x.map(step => -step).reverse(),
    [...y].reverse(),
    width
  ).reverse();
  const result = y.map((value, i) => {
    const own = Number.isFinite(value) ? 1 : 0; // counted in both sums
    const weight = before[i].weight + after[i].weight - own;
    return (before[i].sum + after[i].sum - (own ? value : 0)) / weight;
  });
  return { x, y: result };
}

/** For each point, exponentially decaying sums of the values and weights up to it. */
function decayingSums(
  x: number[],
  y: number[],
  width: number
): { sum: number; weight: number }[] {
  let [sum, weight, last] = [0, 0, x[0]];
  return x.map((step, i) => {
    const decay = Math.exp(-(step - last) / width);
    const finite = Number.isFinite(y[i]);
    last = step;
    sum = sum * decay + (finite ? y[i] : 0);
    weight = weight * decay + (finite ? 1 : 0);
    return { sum, weight };
  });
}

/** The line through `points` at each of `places`, both in order. */
export function interpolated(points: IPoints, places: number[]): number[] {
  const { x, y } = points;
  if (!x.length) {
    return places.map(() => NaN);
  }
  let right = 0;
  return places.map(place => {
    while (right < x.length && x[right] < place) {
      right += 1;
    }
    if (right === 0 || right === x.length) {
      return y[Math.min(right, x.length - 1)];
    }
    const share = (place - x[right - 1]) / (x[right] - x[right - 1]);
    return y[right - 1] + share * (y[right] - y[right - 1]);
  });
}
