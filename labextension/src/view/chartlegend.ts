import type { IChart } from './chartspec';
import { lineColor } from './chartspec';
import { make, setText } from './dom';

/** The names of a chart's lines, and their values if the lines are of the same kind. */
export class ChartLegend {
  readonly node = make('div', 'chart-legend', { 'aria-hidden': 'true' });
  private entries: HTMLElement[] = [];
  private layout = '';

  update(spec: IChart): void {
    const { lines, highlighted, colors } = spec;
    const layout = `${lines.map(line => line.name).join()} ${highlighted} ${colors?.join()}`;
    this.node.hidden = lines.length < 2 && !colors;
    if (this.node.hidden || this.layout === layout) {
      return;
    }
    this.layout = layout;
    this.entries = lines.map(({ name }, index) => {
      const entry = make('span', 'chart-entry', { title: name }, name);
      entry.style.setProperty('--nbmgpu-line', lineColor(spec, index));
      return entry;
    });
    this.node.replaceChildren(...this.entries);
  }

  /** Show a text behind the name of each line. */
  showValues(spec: IChart, values: readonly string[]): void {
    this.entries.forEach((entry, line) =>
      setText(entry, `${spec.lines[line]?.name ?? ''} ${values[line] ?? ''}`)
    );
  }
}
