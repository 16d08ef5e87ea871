import type { TranslationBundle } from '@jupyterlab/translation';
import { h, type VirtualElement } from '@lumino/virtualdom';

import type { IRunsState } from '../runsstate';
import { connectionLostText } from '../messages';

/** What to say of the server, or nothing while all is well. */
export function notice(state: IRunsState, trans: TranslationBundle): string {
  switch (state.link) {
    case 'live':
      return '';
    case 'waiting':
      return trans.__('Asking the server for devices and runs …');
    case 'lost':
      return connectionLostText(trans);
    case 'missing':
      return trans.__(
        'The server that serves this page has no nbmgpu. Runs go on in their notebooks all the same. To see them here: pip install nbmgpu in the environment of the Jupyter server, then start the server anew.'
      );
  }
}

/** What to do to get a first run. */
export function firstRunHelp(trans: TranslationBundle): VirtualElement[] {
  return [
    h.div(
      { key: 'lesson', className: 'nbmgpu-Lesson' },
      h.p(trans.__('No runs yet. In a notebook, run this once:')),
      h.pre('%load_ext nbmgpu'),
      h.p(trans.__('Then put one line above a cell that trains:')),
      h.pre('%%mgpu --strategy ddp'),
      h.p(
        trans.__(
          'The run appears here with its curve, whatever notebook it comes from. The button with this icon in the toolbar of a cell helps to choose a strategy.'
        )
      )
    )
  ];
}
