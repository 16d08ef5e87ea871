import type { RunComparison } from '../../generated/report';
import { Chart } from '../chart';
import type { IChart } from '../chartspec';
import { chartTools } from '../charttools';
import { KeyedList, make, setText } from '../dom';
import type { IMemory, ITranslate } from '../source';
import { onThemeChange } from '../theme';
import { metricText } from '../words';
import { AXES, axisOf, knownAxes, type AxisName } from './axes';
import { runStyle } from './runstyle';

/** A chart per metric, with a line per run. */
export class ComparisonCharts {
  readonly node: HTMLElement;
  private comparison: RunComparison | null = null;
  private readonly axis: HTMLSelectElement;
  private readonly grid = make('div', 'charts');
  private readonly more = make('div', 'more');
  private readonly charts: KeyedList<IChart>;
  private readonly endTheme: () => void;

  constructor(
    memory: IMemory,
    private readonly trans: ITranslate
  ) {
    const each = (action: (chart: Chart) => void) =>
      this.charts.values().forEach(chart => action(chart as Chart));
    const { scaling, nodes } = chartTools(memory, trans, () =>
      each(chart => chart.requestDraw())
    );
    this.charts = new KeyedList<IChart>(
      this.grid,
      chart => chart.key,
      () => new Chart(scaling, trans)
    );
    this.axis = make('select', 'axis');
    this.axis.addEventListener('change', () => {
      scaling.zoomTo(null);
      this.draw();
    });
    const label = make('label', 'smooth', {}, trans.__('Horizontal axis'), this.axis);
    const tools = make('div', 'tools', {}, label, ...nodes);
    this.node = make(
      'section',
      'curves',
      { 'aria-label': trans.__('Curves') },
      tools,
      this.grid,
      this.more
    );
    this.endTheme = onThemeChange(() => each(chart => chart.updateTheme()));
  }

  update(comparison: RunComparison): void {
    this.comparison = comparison;
    this.updateAxes();
    this.draw();
    this.more.hidden = !comparison.hidden;
    setText(this.more, this.trans.__('%1 more metrics', comparison.hidden));
  }

  dispose(): void {
    this.endTheme();
    this.charts.dispose();
  }

  private updateAxes(): void {
    const { runs, metrics } = this.comparison ?? { runs: [], metrics: [] };
    const drawn = new Set(metrics.flatMap(metric => metric.runs));
    const known = knownAxes(runs.filter((_, index) => drawn.has(index)));
    if (this.axis.dataset.known === known.join()) {
      return;
    }
    this.axis.dataset.known = known.join();
    const chosen = this.axis.value as AxisName;
    const options = AXES.filter(name => known.includes(name)).map(name =>
      make('option', '', { value: name }, this.axisTitle(name))
    );
    this.axis.replaceChildren(...options);
    this.axis.value = known.includes(chosen) ? chosen : 'step';
  }

  private axisTitle(name: AxisName): string {
    return {
      step: this.trans.__('Step'),
      epochs: this.trans.__('Epoch'),
      samples: this.trans.__('Samples'),
      seconds: this.trans.__('Time')
    }[name];
  }

  private draw(): void {
    const { runs, metrics } = this.comparison ?? { runs: [], metrics: [] };
    const axis = this.axis.value as AxisName;
    this.charts.update(
      metrics.map(metric => ({
        key: metric.name,
        title: metricText(metric.name, this.trans),
        last: '',
        finite: true,
        lines: metric.lines.map((line, index) => ({
          ...line,
          name: runs[metric.runs[index]].title
        })),
        unit: 'number',
        highlighted: -1,
        styles: metric.runs.map(runStyle),
        axis: axisOf(axis, this.axisTitle(axis), runs, metric.runs)
      }))
    );
  }
}
