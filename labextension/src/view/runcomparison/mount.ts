import type { RunComparison } from '../../generated/report';
import { make } from '../dom';
import { viewMemory } from '../mount';
import type { ITranslate } from '../source';
import { CellDifferences } from './cells';
import { ComparisonCharts } from './charts';
import { ComparisonTable, type ITableActions } from './table';

/** The view of several runs side by side. */
export interface IRunComparisonView {
  update(comparison: RunComparison): void;
  dispose(): void;
}

/** Show a comparison in `node`: charts, a table, and the differences of the cells. */
export function mountRunComparison(
  node: HTMLElement,
  actions: ITableActions,
  trans: ITranslate
): IRunComparisonView {
  const charts = new ComparisonCharts(viewMemory(), trans);
  const table = new ComparisonTable(actions, trans);
  const cells = new CellDifferences(trans);
  const root = make(
    'div',
    'view',
    { role: 'region', 'aria-label': trans.__('Comparison of runs') },
    charts.node,
    table.node,
    cells.node
  );
  root.classList.add('nbmgpu');
  node.append(root);
  return {
    update: comparison => {
      charts.update(comparison);
      table.update(comparison);
      cells.update(comparison);
    },
    dispose: () => {
      charts.dispose();
      root.remove();
    }
  };
}
