import type { CurveLine, Parts } from '../generated/report';
import { Chart } from './chart';
import type { IChart } from './chartspec';
import { chartTools } from './charttools';
import {
  button,
  KeyedList,
  make,
  setAttribute,
  addArrowKeyNavigation,
  setText
} from './dom';
import { formatSeconds, stepCost } from './format';
import { groupMetrics } from './metricgroups';
import type { ISection, ISectionContext, ISectionView } from './section';
import { unpack } from './points';
import { runColor } from './runcomparison/colors';
import type { ITranslate } from './source';
import { onThemeChange } from './theme';

/** Number of charts shown by default; buttons show the others. */
const DEFAULT_CHARTS = 6;

/** Charts of each metric, of the throughput, and of the step time. */
export const charts: ISection = { shows: ['curves', 'throughput', 'about'], create };

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
  const redraw = () => shownCharts.values().forEach(chart => (chart as Chart).draw());
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
      return {
        node,
        update: item => setAttribute(node, 'aria-pressed', String(item.shown))
      };
    }
  );

  const tools = make('div', 'tools', {}, chips, ...scalingTools);

  const update = () => {
    const all = specs(read('curves'), read('throughput'), trans);
    const shown = all.map((chart, index) => chosen[chart.key] ?? index < DEFAULT_CHARTS);
    toggles.update(all.map((chart, index) => ({ chart, shown: shown[index] })));
    shownCharts.update(all.filter((_, index) => shown[index]));
    tools.hidden = !all.length;
    empty.hidden = all.length > 0;
    setText(slowestRank, read('throughput').message);
    slowestRank.hidden = !slowestRank.textContent;
    const hidden = read('curves').hidden;
    more.hidden = !hidden;
    setText(
      more,
      trans.__('%1 more in nbmgpu.find_run("%2").metrics', hidden, read('about').id)
    );
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
    slowestRank,
    empty,
    more
  );
  const dispose = () => {
    endTheme();
    shownCharts.dispose();
  };
  return { node, update, dispose };
}

/** All available charts, in order. */
function specs(
  curves: Parts['curves'],
  throughput: Parts['throughput'],
  trans: ITranslate
): IChart[] {
  const { epochs } = curves;
  const chart = (name: string, lines: readonly CurveLine[]): IChart => ({
    key: name,
    title: name,
    last: lines[0].last,
    finite: lines.every(line => line.finite),
    lines: [...lines],
    unit: 'number',
    highlighted: -1,
    colors: lines.length > 1 ? lines.map((_, index) => runColor(index)) : undefined,
    epochs
  });
  const all = [
    ...groupMetrics(curves.shown).map(({ name, lines }) => chart(name, lines)),
    ...throughput.rates.map(line => chart(line.name, [line]))
  ];
  if (throughput.step_times.length) {
    all.push(stepTime(throughput, trans));
  }
  return all;
}

function stepTime(throughput: Parts['throughput'], trans: ITranslate): IChart {
  const lines = throughput.step_times;
  const values = unpack(lines[0].points).y;
  const highlighted = lines.findIndex(line => line.name === `rank ${throughput.slowest}`);
  return {
    key: 'step time',
    title: 'step time',
    last: stepCost(
      throughput.step_time || formatSeconds(values[values.length - 1]),
      throughput.sent,
      trans
    ),
    finite: true,
    lines,
    unit: 'seconds',
    highlighted
  };
}
