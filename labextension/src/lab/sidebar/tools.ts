import type { TranslationBundle } from '@jupyterlab/translation';
import { h, type VirtualElement } from '@lumino/virtualdom';

/** The filter of the list of runs, and the actions on those that are selected. */
export interface IRunTools {
  readonly trans: TranslationBundle;
  /** The number of selected runs. */
  readonly selected: number;
  readonly setFilter: (filter: string) => void;
  readonly compare: () => void;
  readonly clear: () => void;
}

/** The tools above the list of runs. */
export function runTools(tools: IRunTools): VirtualElement {
  const { trans, selected } = tools;
  return h.div(
    { key: 'tools', className: 'nbmgpu-RunTools' },
    h.input({
      key: 'filter',
      type: 'search',
      className: 'nbmgpu-RunTools-filter jp-mod-styled',
      placeholder: trans.__('Filter runs'),
      title: trans.__('By name, tag, notebook, strategy or state'),
      'aria-label': trans.__('Filter runs'),
      oninput: event => tools.setFilter((event.currentTarget as HTMLInputElement).value)
    }),
    h.div(
      { key: 'actions', className: 'nbmgpu-RunTools-actions' },
      h.button(
        {
          key: 'compare',
          className: 'nbmgpu-RunTools-compare',
          ...(selected < 2 ? { disabled: 'disabled' } : {}),
          title: trans.__('Show the selected runs side by side'),
          onclick: tools.compare
        },
        selected ? trans.__('Compare (%1)', selected) : trans.__('Compare')
      ),
      selected
        ? h.button(
            { key: 'clear', className: 'nbmgpu-RunTools-clear', onclick: tools.clear },
            trans.__('Clear selection')
          )
        : ''
    )
  );
}
