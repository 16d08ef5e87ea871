// Writes a `%%mgpu` line into the notebook that shows a widget.
//
// A widget cannot access its notebook, and a kernel can write cells only while it runs one.  So the
// picker dispatches a DOM event, which nbmgpu's JupyterLab extension handles.
import { withLine } from './magicline';

/** The event that requests to write a line; its handler calls `preventDefault`. */
export const WRITE_LINE = 'nbmgpu:write-line';

/** The detail of the event. */
export interface IWriteLine {
  line: string;
  where: 'below' | 'next';
}

/** The part of a cell's shared model that is used here. */
interface ISharedCell {
  cell_type: string;
  getSource(): string;
  setSource(source: string): void;
}

/** The part of a notebook widget of JupyterLab that is used here. */
export interface INotebook {
  readonly widgets: readonly { node: HTMLElement }[];
  readonly model: {
    readonly sharedModel: {
      readonly cells: readonly ISharedCell[];
      insertCell(index: number, cell: { cell_type: string; source: string }): unknown;
    };
  } | null;
}

/** Insert a cell with `line` below the one that contains `node`; return whether it succeeded. */
export function insertCellBelow(notebook: INotebook, node: Node, line: string): boolean {
  const position = indexOf(notebook, node);
  if (position < 0 || !notebook.model) {
    return false;
  }
  notebook.model.sharedModel.insertCell(position + 1, {
    cell_type: 'code',
    source: `${line}\n`
  });
  return true;
}

/** Add `line` to the next code cell below `node`; return whether there is one. */
export function setLineOfNextCell(
  notebook: INotebook,
  node: Node,
  line: string
): boolean {
  const position = indexOf(notebook, node);
  const cells = notebook.model?.sharedModel.cells ?? [];
  const next = cells.find((cell, index) => index > position && cell.cell_type === 'code');
  if (position < 0 || !next) {
    return false;
  }
  next.setSource(withLine(next.getSource(), line));
  return true;
}

/** Add `line` to the cell that contains `node`; return whether it succeeded. */
export function setLineOfCell(notebook: INotebook, node: Node, line: string): boolean {
  const cell = notebook.model?.sharedModel.cells[indexOf(notebook, node)];
  cell?.setSource(withLine(cell.getSource(), line));
  return cell !== undefined;
}

function indexOf(notebook: INotebook, node: Node): number {
  return notebook.widgets.findIndex(cell => cell.node.contains(node));
}

/** Request to write `line` at `where`; return whether a handler did. */
export function requestLine(
  node: HTMLElement,
  line: string,
  where: IWriteLine['where']
): boolean {
  const detail: IWriteLine = { line, where };
  const event = new CustomEvent(WRITE_LINE, {
    bubbles: true,
    composed: true,
    cancelable: true,
    detail
  });
  return !node.dispatchEvent(event);
}
