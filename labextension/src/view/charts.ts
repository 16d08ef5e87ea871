import { Chart } from './chart';
import type { IChart } from './chartspec';
import { chartTools } from './charttools';
import { CsvDownload } from './csvdownload';
import {
  button,
  KeyedList,
  make,
  setAttribute,
  addArrowKeyNavigation,
  setText
} from './dom';
import { metricCharts } from './metriccharts';
import { MetricTableView } from './metrictable';
import type { ISection, ISectionContext, ISectionView } from './section';
import { onThemeChange } from './theme';

/** Number of charts shown by default; buttons show the others. */
const DEFAULT_CHARTS = 6;

/** Where the choice is stored whether the table is shown instead of the charts. */
const AS_TABLE = 'metrics as table';

/** Charts of each metric, of the throughput, and of the step time; or a table of the metrics. */
export const charts: ISection = {
  shows: ['curves', 'throughput', 'metrics', 'about'],
  create
};

function create({ source, trans, memory, read }: ISectionContext): ISectionView {
  const empty = make(
    'div',
    'empty',
    {},
    trans.__('Curves appear with the first training step.')
  );
  const grid = make('div', 'charts');
  const slowestRank = make('div', 'more');
  const more = make('div', 'more');
  const redraw = () =>
    shownCharts.values().forEach(chart => (chart as Chart).requestDraw());
  const { scaling, nodes: scalingTools } = chartTools(memory, trans, redraw);
  const chosen = {
    ...((memory.get('charts') as Record<string, boolean> | undefined) ?? {})
  };
  const shownCharts = new KeyedList<IChart>(
    grid,
    chart => chart.key,
    () => new Chart(scaling, trans, source.detail?.bind(source))
  );

  const chips = make('div', 'chips', {
    role: 'group',
    'aria-label': trans.__('Metrics shown')
  });
  addArrowKeyNavigation(chips, 'button');
  const toggles = new KeyedList<{ chart: IChart; shown: boolean }>(
    chips,
    ({ chart }) => chart.key,
    ({ chart }) => {
      const node = button('chip', chart.title, () => {
        chosen[chart.key] = node.getAttribute('aria-pressed') !== 'true';
        memory.set('charts', { ...chosen });
        update();
      });
      node.title = chart.title; // long names are cut
      return {
        node,
        update: item => setAttribute(node, 'aria-pressed', String(item.shown))
      };
    }
  );

  let asTable = memory.get(AS_TABLE) === true;
  const table = new MetricTableView(trans);
  const tableToggle = button('toggle', trans.__('Table'), () => {
    asTable = !asTable;
    memory.set(AS_TABLE, asTable);
    update();
    redraw(); // what has changed while the charts were hidden
  });
  const csv = new CsvDownload(source, trans, () => read('about').id);
  const scalings = make('div', 'scalings', {}, ...scalingTools);
  const right = make('div', 'tools-right', {}, tableToggle, csv.button);
  const tools = make('div', 'tools', {}, chips, scalings, right);

  const update = () => {
    const all = metricCharts(read('curves'), read('throughput'), trans);
    updateView(all.length > 0);
    tools.hidden = !all.length;
    empty.hidden = all.length > 0;
    setText(slowestRank, read('throughput').message);
    slowestRank.hidden = !slowestRank.textContent;
    const { hidden } = asTable ? read('metrics') : read('curves');
    more.hidden = !hidden;
    setText(
      more,
      trans.__('%1 more in nbmgpu.find_run("%2").metrics', hidden, read('about').id)
    );
    if (asTable) {
      table.update(read('metrics'));
      return;
    }
    const shown = all.map((chart, index) => chosen[chart.key] ?? index < DEFAULT_CHARTS);
    toggles.update(all.map((chart, index) => ({ chart, shown: shown[index] })));
    shownCharts.update(all.filter((_, index) => shown[index]));
  };
  /** Show the charts and what belongs to them, or the table. */
  const updateView = (isAny: boolean) => {
    setAttribute(tableToggle, 'aria-pressed', String(asTable));
    [chips, scalings, grid].forEach(each => (each.hidden = asTable));
    table.node.hidden = !asTable || !isAny;
  };
  const endTheme = onThemeChange(() => {
    shownCharts.values().forEach(chart => (chart as Chart).updateTheme());
  });
  const node = make(
    'section',
    'curves',
    { 'aria-label': trans.__('Curves') },
    tools,
    grid,
    table.node,
    slowestRank,
    empty,
    csv.message,
    more
  );
  const dispose = () => {
    endTheme();
    shownCharts.dispose();
    table.dispose();
  };
  return { node, update, dispose };
}
