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

/** The button of a comparison in the output of its cell (nbmgpu/comparison/shown.py). */
const BUTTON = 'button.nbmgpu-write-line';

/** Writes the lines into cells that a picker or a comparison in a notebook's output asks for. */
export const cellLinePlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbmgpu:cell-line',
  description: 'Lets the strategy picker and comparisons of a notebook write cells.',
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
        button.textContent = trans.__('The cell has it.');
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
