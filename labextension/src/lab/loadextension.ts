import type { NotebookPanel } from '@jupyterlab/notebook';

/** The line that loads the magics in a notebook. */
const LOAD_LINE = '%load_ext nbmgpu';

/** Loads the magics in a kernel; does nothing if they are loaded. */
const LOAD = 'get_ipython().extension_manager.load_extension("nbmgpu")';

/** Load the magics in the kernel of a notebook, whatever its cells do. */
export function loadInKernel({ sessionContext }: NotebookPanel): void {
  sessionContext.session?.kernel?.requestExecute({ code: LOAD, silent: true });
}

/**
 * Load the magics, now and after a restart of the kernel: add a cell above the active one, unless a
 * cell of the notebook loads them.
 */
export function loadInNotebook(panel: NotebookPanel): void {
  const { activeCellIndex, model } = panel.content;
  if (!model) {
    return;
  }
  const { cells } = model.sharedModel;
  if (!cells.some(cell => cell.getSource().includes(LOAD_LINE))) {
    model.sharedModel.insertCell(activeCellIndex, {
      cell_type: 'code',
      source: LOAD_LINE,
      metadata: { trusted: true }
    });
    panel.content.activeCellIndex = activeCellIndex + 1;
  }
  loadInKernel(panel);
}
