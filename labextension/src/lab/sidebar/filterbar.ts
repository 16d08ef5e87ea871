import type { TranslationBundle } from '@jupyterlab/translation';
import { h, type VirtualElement } from '@lumino/virtualdom';

import type { RunLine } from '../../generated/report';
import {
  choices,
  FILTER_NAMES,
  isFiltering,
  type FilterName,
  type IRunFilters
} from './filters';

/** The dependencies of the filters above the list of runs. */
export interface IFilterBar {
  readonly trans: TranslationBundle;
  /** All listed runs, whether they are shown or not. */
  readonly runs: readonly RunLine[];
  readonly filters: IRunFilters;
  readonly filter: (filters: Partial<IRunFilters>) => void;
  /** Show all runs. */
  readonly reset: () => void;
}

/** What stands for any value; others have a prefix, as the notebook may be unknown, thus empty. */
const ANY = '';
const PREFIX = '=';

/** The field for words, and a list of values for each property. */
export function filterBar(bar: IFilterBar): VirtualElement {
  const { trans } = bar;
  return h.div(
    {
      key: 'filters',
      className: 'nbmgpu-RunFilters',
      role: 'search',
      'aria-label': trans.__('Filter runs')
    },
    h.input({
      key: 'text',
      type: 'search',
      className: 'nbmgpu-RunFilters-text jp-mod-styled',
      placeholder: trans.__('Filter runs'),
      title: trans.__('By name, tag, notebook, strategy or state'),
      'aria-label': trans.__('Filter runs'),
      oninput: event =>
        bar.filter({ text: (event.currentTarget as HTMLInputElement).value })
    }),
    ...FILTER_NAMES.map(name => select(name, bar)),
    isFiltering(bar.filters) ? resetButton(bar) : ''
  );
}

/** The button that shows all runs. */
export function resetButton({
  trans,
  reset
}: Pick<IFilterBar, 'trans' | 'reset'>): VirtualElement {
  return h.button(
    { key: 'reset', className: 'nbmgpu-RunFilters-reset', onclick: reset },
    trans.__('Reset filters')
  );
}

/**
 * Show the filters in the fields.  The virtual DOM sets attributes, and a field that was used no
 * longer follows them.
 */
export function showFilters(node: HTMLElement, filters: IRunFilters): void {
  const fields: [string, string][] = [
    ['text', filters.text],
    ...FILTER_NAMES.map((name): [string, string] => [name, optionValue(filters[name])])
  ];
  for (const [name, value] of fields) {
    const field = node.querySelector<HTMLInputElement | HTMLSelectElement>(
      `.nbmgpu-RunFilters-${name}`
    );
    if (field && field.value !== value) {
      field.value = value;
    }
  }
}

function select(name: FilterName, bar: IFilterBar): VirtualElement {
  const { filters, runs, trans } = bar;
  const [label, any] = words(name, trans);
  const found = choices(runs, name, filters[name], trans);
  const chosen = found.find(choice => choice.value === filters[name]);
  return h.select(
    {
      key: name,
      className: `nbmgpu-RunFilters-select nbmgpu-RunFilters-${name}`,
      'aria-label': label,
      // In a narrow sidebar, the text is cut off.
      title: chosen ? `${label}: ${chosen.value || chosen.text}` : label,
      dataset: { chosen: String(!!chosen) },
      onchange: event => {
        const { value } = event.currentTarget as HTMLSelectElement;
        bar.filter({ [name]: value === ANY ? null : value.slice(PREFIX.length) });
      }
    },
    h.option({ key: ANY, value: ANY }, any),
    ...found.map(({ value, text }) =>
      h.option({ key: optionValue(value), value: optionValue(value) }, text)
    )
  );
}

function optionValue(value: string | null): string {
  return value === null ? ANY : PREFIX + value;
}

/** The name of a property, and the choice of any value. */
function words(name: FilterName, trans: TranslationBundle): readonly [string, string] {
  switch (name) {
    case 'notebook':
      return [trans.__('Notebook'), trans.__('All notebooks')];
    case 'strategy':
      return [trans.__('Strategy'), trans.__('All strategies')];
    case 'state':
      return [trans.__('State'), trans.__('All states')];
  }
}
