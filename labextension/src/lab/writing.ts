import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';

import { WRITE_LINE, insertBelow, putOnNext, type IWriteLine } from '../picker';

/** Writes the lines into cells that a picker in a notebook's output asks for. */
export const writingPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbmgpu:writing',
  description: 'Lets the strategy picker of a notebook write cells.',
  autoStart: true,
  requires: [INotebookTracker],
  activate: (_app: JupyterFrontEnd, notebooks: INotebookTracker) => {
    document.addEventListener(WRITE_LINE, event => {
      const { line, where } = (event as CustomEvent<IWriteLine>).detail;
      const node = event.target as Node;
      const notebook = notebooks.find(panel => panel.node.contains(node))?.content;
      const write = where === 'below' ? insertBelow : putOnNext;
      if (notebook && write(notebook, node, line)) {
        event.preventDefault();
      }
    });
  }
};
