import type { TranslationBundle } from '@jupyterlab/translation';
import { h, type VirtualElement } from '@lumino/virtualdom';

import type { Extent } from './choice';

/** The most runs that are compared: MAX_RUNS of nbmgpu/report/run_comparison/payload.py. */
export const MAX_COMPARED = 32;

/** The selection of runs, and the actions on those that are selected. */
export interface IRunTools {
  readonly trans: TranslationBundle;
  /** The numbers of selected runs, and of those of them that the filters hide. */
  readonly selected: number;
  readonly hidden: number;
  /** Select all shown runs, or none of them. */
  readonly selectShown: (selected: boolean) => void;
  readonly compare: () => void;
  readonly clear: () => void;
}

/** The tools above the list of runs. */
export function runTools(tools: IRunTools): VirtualElement {
  const { trans, selected } = tools;
  const limit =
    selected > MAX_COMPARED
      ? trans.__('At most %1 runs can be compared', MAX_COMPARED)
      : '';
  return h.div(
    { key: 'tools', className: 'nbmgpu-RunTools' },
    h.label(
      { key: 'all', className: 'nbmgpu-RunTools-all' },
      h.input({
        type: 'checkbox',
        className: 'nbmgpu-RunTools-selectShown',
        title: trans.__('Select all shown runs'),
        'aria-label': trans.__('Select all shown runs'),
        onchange: event =>
          tools.selectShown((event.currentTarget as HTMLInputElement).checked)
      }),
      h.span({ className: 'nbmgpu-RunTools-count', role: 'status' }, countText(tools))
    ),
    h.div(
      { key: 'actions', className: 'nbmgpu-RunTools-actions' },
      h.button(
        {
          key: 'compare',
          className: 'nbmgpu-RunTools-compare',
          ...(selected < 2 || limit ? { disabled: 'disabled' } : {}),
          title: trans.__('Show the selected runs side by side'),
          onclick: tools.compare
        },
        trans.__('Compare')
      ),
      selected
        ? h.button(
            {
              key: 'clear',
              className: 'nbmgpu-RunTools-clear',
              title: trans.__('Clear selection'),
              'aria-label': trans.__('Clear selection'),
              onclick: tools.clear
            },
            trans.__('Clear')
          )
        : ''
    ),
    limit ? h.div({ key: 'limit', className: 'nbmgpu-RunTools-limit' }, limit) : ''
  );
}

/** Show in the checkbox how many of the shown runs are selected; an attribute cannot say "some". */
export function showExtent(node: HTMLElement, extent: Extent): void {
  const box = node.querySelector<HTMLInputElement>('.nbmgpu-RunTools-selectShown');
  if (box) {
    box.checked = extent === 'all';
    box.indeterminate = extent === 'some';
  }
}

function countText({ trans, selected, hidden }: IRunTools): string {
  if (!selected) {
    return trans.__('Select all');
  }
  return hidden
    ? trans.__('%1 selected, %2 hidden', selected, hidden)
    : trans.__('%1 selected', selected);
}
