// Formats bytes like nbmgpu/formatting.py, and computes the scale of the bars.
import type { Advice } from './source';

/** Units of memory, each 1024 of the one before. */
export const UNITS = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/** Format bytes: `1.4 GiB`. */
export function formatBytes(size: number): string {
  let unit = 0;
  while (size >= 999.5 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${size.toFixed(unit === 0 || size >= 99.5 ? 0 : 1)} ${UNITS[unit]}`;
}

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
