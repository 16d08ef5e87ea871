// Writing a `%%mgpu` line into the notebook that a widget is shown in.
//
// A widget has no way to its notebook of its own, and a kernel can write cells only while one
// is run.  So the picker asks the page, by an event: JupyterLab with nbmgpu's extension listens.
import { withLine } from './magicline';

/** The event by which a line is offered to the page; who takes it prevents its default. */
export const WRITE_LINE = 'nbmgpu:write-line';

/** What the event says. */
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

/** Insert a cell with `line` below the one that contains `node`; tell whether that was possible. */
export function insertCellBelow(notebook: INotebook, node: Node, line: string): boolean {
  const place = placeOf(notebook, node);
  if (place < 0 || !notebook.model) {
    return false;
  }
  notebook.model.sharedModel.insertCell(place + 1, {
    cell_type: 'code',
    source: `${line}\n`
  });
  return true;
}

/** Put `line` on the next code cell below `node`; tell whether there is one. */
export function setLineOfNextCell(notebook: INotebook, node: Node, line: string): boolean {
  const place = placeOf(notebook, node);
  const cells = notebook.model?.sharedModel.cells ?? [];
  const next = cells.find((cell, index) => index > place && cell.cell_type === 'code');
  if (place < 0 || !next) {
    return false;
  }
  next.setSource(withLine(next.getSource(), line));
  return true;
}

/** Put `line` on the cell that contains `node`; tell whether that was possible. */
export function setLineOfCell(notebook: INotebook, node: Node, line: string): boolean {
  const cell = notebook.model?.sharedModel.cells[placeOf(notebook, node)];
  cell?.setSource(withLine(cell.getSource(), line));
  return cell !== undefined;
}

function placeOf(notebook: INotebook, node: Node): number {
  return notebook.widgets.findIndex(cell => cell.node.contains(node));
}

/** Write `line` where `where` says, if anybody can; tell whether it was done. */
export function requestLine(
  node: HTMLElement,
  line: string,
  where: IWriteLine['where']
): boolean {
  const detail: IWriteLine = { line, where };
  const offer = new CustomEvent(WRITE_LINE, {
    bubbles: true,
    composed: true,
    cancelable: true,
    detail
  });
  return !node.dispatchEvent(offer);
}
