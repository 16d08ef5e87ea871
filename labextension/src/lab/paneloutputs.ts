import type { ICellModel, ICodeCellModel } from '@jupyterlab/cells';

/** The part of an output that shows a widget, as long as its kernel has the widget. */
const WIDGET = 'application/vnd.jupyter.widget-view+json';

/** The panel of a run in an output of a notebook. */
export interface IPanelOutput {
  readonly run: string;
  readonly outputs: ICodeCellModel['outputs'];
  readonly index: number;
}

/** The panels that stand in the outputs of cells: not those that have given way to a summary. */
export function* panelOutputs(cells: Iterable<ICellModel>): Generator<IPanelOutput> {
  for (const cell of cells) {
    if (cell.type !== 'code') {
      continue;
    }
    const { outputs } = cell as ICodeCellModel;
    for (let index = 0; index < outputs.length; index++) {
      const { data, metadata } = outputs.get(index);
      const run = runOf(metadata['nbmgpu']);
      if (run && WIDGET in data) {
        yield { run, outputs, index };
      }
    }
  }
}

/** The run that an output's mark names (nbmgpu/ui/live.py), or nothing. */
function runOf(mark: unknown): string {
  const panel = mark && typeof mark === 'object' && 'panel' in mark ? mark.panel : '';
  return typeof panel === 'string' ? panel : '';
}
