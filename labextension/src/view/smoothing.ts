import type { IPoints } from './points';

/** The strongest smoothing spans this part of the run. */
const WIDEST = 0.15;

/**
 * The points, smoothed: an exponential moving average over steps from both sides, so that it
 * neither lags behind nor clings to its first value.  `strength` goes from 0 (as it is) to 1.
 */
export function smoothed(points: IPoints, strength: number): IPoints {
  const { x, y } = points;
  const width = strength ** 2 * WIDEST * (x[x.length - 1] - x[0]);
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
    const own = Number.isFinite(value) ? 1 : 0; // it is in both sums
    const weight = before[i].weight + after[i].weight - own;
    return (before[i].sum + after[i].sum - (own ? value : 0)) / weight;
  });
  return { x, y: result };
}

/** For each point, the sum of it and all before, fading with distance, and of their weights. */
function decayingSums(
  x: number[],
  y: number[],
  width: number
): { sum: number; weight: number }[] {
  let [sum, weight, last] = [0, 0, x[0]];
  return x.map((step, i) => {
    const fade = Math.exp(-(step - last) / width);
    const sound = Number.isFinite(y[i]);
    last = step;
    sum = sum * fade + (sound ? y[i] : 0);
    weight = weight * fade + (sound ? 1 : 0);
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
