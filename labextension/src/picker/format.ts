// Formats ranges of bytes, and computes the scale of the bars.
import { formatBytes } from '../view/format';
import type { Advice } from './source';

/** Format a range of bytes; one number if both are formatted alike. */
export function formatByteRange(low: number, high: number): string {
  const [first, last] = [formatBytes(low), formatBytes(high)];
  if (first === last) {
    return last;
  }
  const [number, unit] = first.split(' ');
  return last.endsWith(` ${unit}`) ? `${number}–${last}` : `${first} – ${last}`;
}

/** Maximum scale of a bar relative to the free memory. */
const MAX_SCALE = 1.4;

/** The bytes that fill a bar completely; 0 if there is nothing to draw. */
export function scaleOf(advice: Advice): number {
  const most = Math.max(0, ...advice.rows.map(row => row.high));
  return advice.free
    ? Math.min(Math.max(advice.free, most), advice.free * MAX_SCALE)
    : most;
}
