import type { Quantity, SystemChart } from '../generated/report';
import { Chart } from './chart';
import type { IAxis, IChart, IScaling } from './chartspec';
import { KeyedList, make, uniqueId } from './dom';
import { foldable, rememberFolding } from './foldable';
import { formatDuration } from './format';
import { runStyle } from './runcomparison/runstyle';
import type { ISection, ISectionContext, ISectionView } from './section';
import type { ITranslate } from './source';
import { onThemeChange } from './theme';
import { rankText } from './words';

/** Where the choice is stored whether the charts are unfolded. */
const IS_OPEN = 'system unfolded';

/** The time since the run began. */
function timeAxis(trans: ITranslate): IAxis {
  const title = trans.__('Time');
  return { key: 'time', title, place: points => points, format: formatDuration };
}

/** Charts of processor, memory, GPU and network of each rank over time, folded at first. */
export const system: ISection = { shows: ['system'], create };

function create({ trans, read, memory }: ISectionContext): ISectionView {
  const grid = make('div', 'charts');
  const node = foldable(trans.__('System'), grid);
  rememberFolding(node, memory, IS_OPEN, false);
  const scaling: IScaling = {
    key: uniqueId(),
    smoothing: 0,
    log: false,
    zoom: null,
    zoomTo: zoom => {
      scaling.zoom = zoom;
      charts.values().forEach(chart => (chart as Chart).requestDraw());
    }
  };
  const charts = new KeyedList<IChart>(
    grid,
    chart => chart.key,
    () => new Chart(scaling, trans)
  );
  const update = () => {
    const payload = read('system');
    node.hidden = !payload.length;
    if (node.open) {
      charts.update(payload.map(chart => spec(chart, trans)));
    }
  };
  node.addEventListener('toggle', update);
  const endTheme = onThemeChange(() => {
    charts.values().forEach(chart => (chart as Chart).updateTheme());
  });
  const dispose = () => {
    endTheme();
    charts.dispose();
  };
  return { node, update, dispose };
}

function spec({ quantity, unit, lines }: SystemChart, trans: ITranslate): IChart {
  return {
    key: quantity,
    title: titleOf(quantity, trans),
    last: lines[0].last,
    finite: true,
    lines: lines.map(line => ({ ...line, name: rankText(line.name, trans) })),
    unit,
    highlighted: -1,
    styles: lines.map((_, index) => runStyle(index)),
    axis: timeAxis(trans)
  };
}

function titleOf(quantity: Quantity, trans: ITranslate): string {
  return {
    cpu: trans.__('CPU, of one core'),
    memory: trans.__('memory'),
    gpu: trans.__('GPU'),
    gpu_memory: trans.__('GPU memory'),
    sent: trans.__('sent to other ranks')
  }[quantity];
}
