import type { TranslationBundle } from '@jupyterlab/translation';
import { h, type VirtualElement } from '@lumino/virtualdom';

import type { IRunsState } from '../runsstate';
import { connectionLostText } from '../messages';
import { resetButton, type IFilterBar } from './filterbar';

/** The notice about the server connection; empty while connected. */
export function notice(state: IRunsState, trans: TranslationBundle): string {
  switch (state.connection) {
    case 'live':
      return '';
    case 'waiting':
      return trans.__('Loading devices and runs …');
    case 'lost':
      return connectionLostText(trans);
    case 'missing':
      return trans.__(
        'nbmgpu is not installed in the environment of the Jupyter server. Runs work in their notebooks. To see them here: pip install nbmgpu in that environment, then restart the server.'
      );
  }
}

/** What is shown instead of runs when the filters hide all of them. */
export function noMatch(bar: Pick<IFilterBar, 'trans' | 'reset'>): VirtualElement {
  return h.div(
    { key: 'none', className: 'nbmgpu-Notice nbmgpu-NoMatch' },
    h.span({ role: 'status' }, bar.trans.__('No run meets all of these filters.')),
    resetButton(bar)
  );
}

/** Instructions for a first run. */
export function firstRunHelp(trans: TranslationBundle): VirtualElement[] {
  return [
    h.div(
      { key: 'instructions', className: 'nbmgpu-Instructions' },
      h.p(trans.__('No runs yet. In a notebook, run this once:')),
      h.pre('%load_ext nbmgpu'),
      h.p(trans.__('Then put one line above a cell that trains:')),
      h.pre('%%mgpu --strategy ddp'),
      h.p(
        trans.__(
          'The runs of all notebooks appear here. To choose a strategy, use the button with this icon in the toolbar of a cell.'
        )
      )
    )
  ];
}
