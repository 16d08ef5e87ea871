import type { IStateDB } from '@jupyterlab/statedb';
import type { ReadonlyPartialJSONValue } from '@lumino/coreutils';
import { Signal } from '@lumino/signaling';

import type { RunLine } from '../../generated/report';
import { isKnownToBeGone, type IRunsState } from '../runsstate';
import { FILTER_NAMES, NO_FILTERS, type IRunFilters } from './filters';

/** Where the choice is kept in JupyterLab's state. */
export const STATE_ID = 'nbmgpu:sidebar';

/** How many of the shown runs are selected. */
export type Extent = 'none' | 'some' | 'all';

/** The filters of the list of runs, and the selected runs; both survive a reload of the page. */
export class RunChoice {
  readonly changed = new Signal<this, void>(this);

  /** Without a state database, the choice ends with the page. */
  constructor(private readonly database: IStateDB | null = null) {
    database?.fetch(STATE_ID).then(
      kept => this.restore(kept),
      reason => console.warn('nbmgpu: no state of the sidebar', reason)
    );
  }

  get filters(): IRunFilters {
    return this.currentFilters;
  }

  isSelected(id: string): boolean {
    return this.selected.has(id);
  }

  /** Set some filters. */
  filter(filters: Partial<IRunFilters>): void {
    this.currentFilters = { ...this.currentFilters, ...filters };
    this.onChange();
  }

  /** Select runs, or no longer. */
  select(ids: readonly string[], isSelected: boolean): void {
    for (const id of ids) {
      if (isSelected) {
        this.selected.add(id);
      } else {
        this.selected.delete(id);
      }
    }
    this.onChange();
  }

  /** Select no run. */
  clear(): void {
    this.selected.clear();
    this.onChange();
  }

  /** The selected runs that are listed, oldest first: others are compared with the oldest one. */
  listedIds(state: IRunsState): string[] {
    const ids = state.runs.map(run => run.id).filter(id => this.selected.has(id));
    return ids.reverse();
  }

  /** How many of the shown runs are selected. */
  extent(shown: readonly RunLine[]): Extent {
    const count = shown.filter(run => this.selected.has(run.id)).length;
    return count === 0 ? 'none' : count === shown.length ? 'all' : 'some';
  }

  /** Forget runs that were deleted.  Those that are older than the list may still exist. */
  forgetGone(state: IRunsState): void {
    const gone = [...this.selected].filter(id => isKnownToBeGone(state, id));
    if (gone.length) {
      this.select(gone, false);
    }
  }

  private onChange(): void {
    this.isTouched = true;
    this.database
      ?.save(STATE_ID, { filters: { ...this.filters }, selected: [...this.selected] })
      .catch(reason => console.warn('nbmgpu: the state of the sidebar', reason));
    this.changed.emit();
  }

  private restore(kept: ReadonlyPartialJSONValue | undefined): void {
    // What was chosen while JupyterLab still read its state is newer.
    if (this.isTouched) {
      return;
    }
    this.currentFilters = keptFilters(kept);
    this.selected = new Set(keptIds(kept));
    this.changed.emit();
  }

  private currentFilters = NO_FILTERS;
  private selected = new Set<string>();
  private isTouched = false;
}

/** A state that another version has written may have any form. */
function fieldOf(value: unknown, name: string): unknown {
  return typeof value === 'object' && value !== null
    ? (value as Record<string, unknown>)[name]
    : undefined;
}

function keptFilters(kept: unknown): IRunFilters {
  const filters = fieldOf(kept, 'filters');
  const textOf = (name: string): string | null => {
    const value = fieldOf(filters, name);
    return typeof value === 'string' ? value : null;
  };
  const chosen = Object.fromEntries(FILTER_NAMES.map(name => [name, textOf(name)]));
  return { ...NO_FILTERS, ...chosen, text: textOf('text') ?? '' };
}

function keptIds(kept: unknown): string[] {
  const ids = fieldOf(kept, 'selected');
  return Array.isArray(ids)
    ? ids.filter((id): id is string => typeof id === 'string')
    : [];
}
