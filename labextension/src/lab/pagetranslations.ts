import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ITranslator } from '@jupyterlab/translation';

import { translatePage } from '../view';

/** Translates the panels below cells: widgets know neither JupyterLab nor its language. */
export const pageTranslationsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbmgpu:translations',
  description: 'Translates the widgets of nbmgpu.',
  autoStart: true,
  requires: [ITranslator],
  activate: (_: JupyterFrontEnd, translator: ITranslator) =>
    translatePage(translator.load('nbmgpu'))
};
