import type { IChart } from './chartspec';
import { hasLegend, lineStyle, styleKey } from './chartspec';
import { make, setAttribute, setText } from './dom';
import { setSample } from './linestyle';

/** The names of a chart's lines, and their values. */
export class ChartLegend {
  readonly node = make('div', 'chart-legend', { 'aria-hidden': 'true' });
  private values: HTMLElement[] = [];
  private layout = '';

  update(spec: IChart): void {
    const { lines } = spec;
    const layout = `${lines.map(line => line.name).join()} ${styleKey(spec)}`;
    this.node.hidden = !hasLegend(spec);
    setAttribute(this.node, 'data-unit', spec.unit);
    if (this.node.hidden || this.layout === layout) {
      return;
    }
    this.layout = layout;
    this.values = lines.map(() => make('span', 'chart-entry-value'));
    const entries = lines.map(({ name }, index) => {
      const shown = make('span', 'chart-entry-name', {}, name);
      const children = [shown, ' ', this.values[index]];
      const entry = make('span', 'chart-entry', { title: name }, ...children);
      setSample(entry, lineStyle(spec, index));
      return entry;
    });
    this.node.replaceChildren(...entries);
  }

  /** Show a text behind the name of each line. */
  showValues(values: readonly string[]): void {
    this.values.forEach((node, line) => setText(node, values[line] ?? ''));
  }
}
