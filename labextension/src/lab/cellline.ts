import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import {
  WRITE_LINE,
  hasLine,
  insertCellBelow,
  setLineOfNextCell,
  setLineOfCell,
  type IWriteLine
} from '../picker';

/** The button of a comparison in the output of its cell (nbmgpu/comparison/rendering.py). */
const BUTTON = 'button.nbmgpu-write-line';

/** Writes `%%mgpu` lines into cells, for pickers and comparisons in a notebook's output. */
export const cellLinePlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbmgpu:cell-line',
  description: 'Lets strategy pickers and comparisons write %%mgpu lines into cells.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ITranslator],
  activate: (
    _app: JupyterFrontEnd,
    notebooks: INotebookTracker,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('nbmgpu');
    const notebookOf = (node: Node) =>
      notebooks.find(panel => panel.node.contains(node))?.content;
    document.addEventListener('click', event => {
      const button = (event.target as Element).closest<HTMLButtonElement>(BUTTON);
      const line = button?.dataset.line ?? '';
      const notebook = button && hasLine(line) ? notebookOf(button) : undefined;
      if (button && notebook && setLineOfCell(notebook, button, line)) {
        button.textContent = trans.__('Line added.');
        button.disabled = true;
      }
    });
    document.addEventListener(WRITE_LINE, event => {
      const { line, where } = (event as CustomEvent<IWriteLine>).detail;
      const node = event.target as Node;
      const notebook = notebookOf(node);
      const write = where === 'below' ? insertCellBelow : setLineOfNextCell;
      if (notebook && write(notebook, node, line)) {
        event.preventDefault();
      }
    });
  }
};
