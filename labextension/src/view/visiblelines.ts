// Computes which lines of a long list are visible.

/** The height of a line in pixels; `.nbmgpu-line` has the same. */
export const LINE = 18;

/** The maximum height of a node; browsers lose precision beyond. */
export const MAX_HEIGHT = 8_000_000;

/** The visible lines, and the position of the first in pixels. */
export interface IWindow {
  first: number;
  count: number;
  top: number;
}

/** The height of the whole list. */
export function heightOf(total: number): number {
  return Math.min(total * LINE, MAX_HEIGHT);
}

/**
 * The visible lines of `total`.  The scroll position of a list above the maximum height is a
 * fraction of the list: scrolling is coarser, but reaches every line.
 */
export function visibleLines(
  scrollTop: number,
  viewHeight: number,
  total: number
): IWindow {
  const count = Math.ceil(viewHeight / LINE) + 1;
  if (total * LINE <= MAX_HEIGHT) {
    const first = Math.min(
      Math.max(Math.floor(scrollTop / LINE), 0),
      Math.max(total - 1, 0)
    );
    return { first, count: Math.min(count, total - first), top: first * LINE };
  }
  const fitting = Math.floor(viewHeight / LINE);
  const share = scrollTop / (MAX_HEIGHT - viewHeight);
  const first = Math.round(Math.min(share, 1) * (total - fitting));
  return { first, count: Math.min(count, total - first), top: scrollTop };
}

/** The scroll position at which line `index` is the first. */
export function scrollTo(index: number, viewHeight: number, total: number): number {
  if (total * LINE <= MAX_HEIGHT) {
    return index * LINE;
  }
  return (index / (total - Math.floor(viewHeight / LINE))) * (MAX_HEIGHT - viewHeight);
}
