import type { RunLine } from '../../generated/report';
import { matchingRuns } from '../runsstate';
import { english, type ITranslate } from '../../view/source';
import { stateText } from '../../view/words';

/** What a run must be to be shown: a value for each property, null for any. */
export interface IRunFilters {
  /** Words, all of which its texts have. */
  readonly text: string;
  readonly notebook: string | null;
  readonly strategy: string | null;
  readonly state: string | null;
}

/** The properties of a run that can be chosen. */
export type FilterName = 'notebook' | 'strategy' | 'state';

export const FILTER_NAMES: readonly FilterName[] = ['notebook', 'strategy', 'state'];

/** All runs are shown. */
export const NO_FILTERS: IRunFilters = {
  text: '',
  notebook: null,
  strategy: null,
  state: null
};

/** Whether some runs may be hidden. */
export function isFiltering(filters: IRunFilters): boolean {
  return !!filters.text.trim() || FILTER_NAMES.some(name => filters[name] !== null);
}

/** The runs that meet all filters. */
export function filteredRuns(
  runs: readonly RunLine[],
  filters: IRunFilters,
  trans: ITranslate = english
): RunLine[] {
  return matchingRuns(runs, filters.text, trans).filter(run =>
    FILTER_NAMES.every(
      name => filters[name] === null || filters[name] === valueOf(run, name)
    )
  );
}

/** A value of a property, and its text. */
export interface IChoice {
  readonly value: string;
  readonly text: string;
}

/**
 * The values of a property that occur, by text.  The one that is chosen stays, also when its last
 * run is deleted: otherwise nothing would say why no run is shown.
 */
export function choices(
  runs: readonly RunLine[],
  name: FilterName,
  chosen: string | null,
  trans: ITranslate = english
): IChoice[] {
  const values = new Set(runs.map(run => valueOf(run, name)));
  if (chosen !== null) {
    values.add(chosen);
  }
  return [...values]
    .map(value => ({ value, text: textOf(name, value, values, trans) }))
    .sort((a, b) => a.text.localeCompare(b.text));
}

function valueOf(run: RunLine, name: FilterName): string {
  return name === 'state' ? run.status.state : run[name];
}

function textOf(
  name: FilterName,
  value: string,
  values: ReadonlySet<string>,
  trans: ITranslate
): string {
  switch (name) {
    case 'notebook':
      return value ? shortPath(value, values) : trans.__('not from a notebook');
    case 'strategy':
      return value;
    case 'state':
      // The only state whose word in English is another one.
      return stateText(value === 'timeout' ? 'timed out' : value, trans);
  }
}

/** The last parts of a path, as many as distinguish it from the other paths. */
function shortPath(path: string, paths: ReadonlySet<string>): string {
  const parts = path.split('/');
  const others = [...paths].filter(other => other !== path);
  for (let count = 1; count < parts.length; count += 1) {
    const short = parts.slice(-count).join('/');
    if (!others.some(other => `/${other}`.endsWith(`/${short}`))) {
      return short;
    }
  }
  return path;
}
