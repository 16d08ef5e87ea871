// Which lines of a long list are in sight.

/** The height of a line in pixels; `.nbmgpu-line` has the same. */
export const LINE = 18;

/** The tallest that a node may be: browsers lose precision beyond. */
export const TALLEST = 8_000_000;

/** The lines in sight, and where the first of them lies. */
export interface IWindow {
  first: number;
  count: number;
  top: number;
}

/** The height of the whole list. */
export function heightOf(total: number): number {
  return Math.min(total * LINE, TALLEST);
}

/**
 * What is in sight of `total` lines.  A list that is too tall for one node is scrolled by
 * share: its scroll bar is coarser, and every line can still be reached.
 */
export function inSight(scrollTop: number, viewHeight: number, total: number): IWindow {
  const count = Math.ceil(viewHeight / LINE) + 1;
  if (total * LINE <= TALLEST) {
    const first = Math.min(
      Math.max(Math.floor(scrollTop / LINE), 0),
      Math.max(total - 1, 0)
    );
    return { first, count: Math.min(count, total - first), top: first * LINE };
  }
  const fitting = Math.floor(viewHeight / LINE);
  const share = scrollTop / (TALLEST - viewHeight);
  const first = Math.round(Math.min(share, 1) * (total - fitting));
  return { first, count: Math.min(count, total - first), top: scrollTop };
}

/** Where to scroll so that line `index` comes first. */
export function scrollTo(index: number, viewHeight: number, total: number): number {
  if (total * LINE <= TALLEST) {
    return index * LINE;
  }
  return (index / (total - Math.floor(viewHeight / LINE))) * (TALLEST - viewHeight);
}
