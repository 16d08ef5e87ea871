import type { ICellModel, ICodeCellModel } from '@jupyterlab/cells';

/** The MIME type of a widget; it renders only while the kernel has the widget. */
const WIDGET = 'application/vnd.jupyter.widget-view+json';

/** The panel of a run in an output of a notebook. */
export interface IPanelOutput {
  readonly run: string;
  readonly outputs: ICodeCellModel['outputs'];
  readonly index: number;
}

interface IDisplay {
  data?: object;
  metadata?: Record<string, unknown>;
}

/** Find the panels in the outputs of cells, without those already replaced by a summary. */
export function* panelOutputs(cells: Iterable<ICellModel>): Generator<IPanelOutput> {
  for (const cell of cells) {
    if (cell.type !== 'code') {
      continue;
    }
    const { outputs } = cell as ICodeCellModel;
    for (let index = 0; index < outputs.length; index++) {
      const run = panelRunOf(outputs.get(index));
      if (run) {
        yield { run, outputs, index };
      }
    }
  }
}

/** The run whose panel an output is, from its metadata (nbmgpu/ui/live_output.py), or ''. */
export function panelRunOf(output: object): string {
  const { data = {}, metadata = {} } = output as IDisplay;
  const mark = metadata['nbmgpu'];
  const panel = mark && typeof mark === 'object' && 'panel' in mark ? mark.panel : '';
  return typeof panel === 'string' && WIDGET in data ? panel : '';
}
