import type { Column } from '../../generated/report';

/** By which column the table is sorted. */
export interface ISorting {
  readonly name: string;
  readonly direction: 'up' | 'down';
}

/** The indices of `count` runs in the order of a column: numbers by size, then texts, then none. */
export function sortedPlaces(
  columns: readonly Column[],
  count: number,
  sorting: ISorting | null
): number[] {
  const places = Array.from({ length: count }, (_, index) => index);
  const column = columns.find(({ name }) => name === sorting?.name);
  if (!column || !sorting) {
    return places;
  }
  const sign = sorting.direction === 'up' ? 1 : -1;
  const rank = (place: number): number => {
    const { text, value } = column.cells[place];
    return value !== null ? 0 : text ? 1 : 2;
  };
  return places.sort((a, b) => {
    const [first, second] = [column.cells[a], column.cells[b]];
    if (rank(a) !== rank(b)) {
      return rank(a) - rank(b); // unknown values are last in both directions
    }
    return first.value !== null && second.value !== null
      ? sign * (first.value - second.value)
      : sign * first.text.localeCompare(second.text);
  });
}

/** The indices of the runs with the best value, if runs differ. */
export function bestPlaces({ cells, best, differs }: Column): number[] {
  const values = cells.flatMap(({ value }) => (value === null ? [] : [value]));
  if (!best || !differs || values.length < 2) {
    return [];
  }
  const limit = best === 'lowest' ? Math.min(...values) : Math.max(...values);
  return cells.flatMap(({ value }, index) => (value === limit ? [index] : []));
}
