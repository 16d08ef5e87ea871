/*!
 * With uPlot, which comes under this licence:
 *
 * The MIT License (MIT)
 *
 * Copyright (c) 2022 Leon Sorokin
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to deal
 * in the Software without restriction, including without limitation the rights
 * to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
 * copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in
 * all copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN
 * THE SOFTWARE.
 */
import uPlot from 'uplot';
import type { CurveLine } from '../generated/report';
import { NO_CHART, type Detail, type IChart, type IScaling } from './chartspec';
import { downloadImage } from './chartimage';
import { formatIn, formatStep, nearest } from './charttext';
import { button, make, setAttribute, setText, type IItemView } from './dom';
import { drawEpochs } from './epochlines';
import { drawable, unpack, type IPoints } from './points';
import { interpolated, smoothed } from './smoothing';
import type { ITranslate } from './source';
import { OTHER_LINES, LINE, HIGHLIGHT, paletteOf, type IPalette } from './theme';

const FAINT_ALPHA = '59';

/** Pixels between two points from which on each point is drawn, not only the line. */
const POINT_SPACING = 12;

/** A chart with its title, its last or hovered values, and a legend. */
export class Chart implements IItemView<IChart> {
  readonly node: HTMLElement;
  private name = make('span', 'chart-name');
  private value = make('span', 'chart-value');
  private legend = make('div', 'chart-legend', { 'aria-hidden': 'true' });
  private plot = make('div', 'chart-plot', { role: 'img', tabindex: '0' });
  private spec = NO_CHART;
  /** The lines that are drawn: of the whole run, or of the zoomed range at a higher resolution. */
  private lines: CurveLine[] = [];
  private points: IPoints[] = [];
  private zoomed: IScaling['zoom'] = null;
  private isDetailed = false;
  private axis = '';
  private names = '';
  private colors: string | undefined;
  private entries: HTMLElement[] = [];
  private data: uPlot.AlignedData = [[]];
  private drawn: uPlot | null = null;
  private layout = '';
  private palette: IPalette = { text: '', muted: '', faint: '' };
  private sizes = new ResizeObserver(() => this.fit());

  constructor(
    private scaling: IScaling,
    private trans: ITranslate,
    private detail?: Detail
  ) {
    const image = button('chart-image', '⤓', () => this.download());
    setAttribute(image, 'aria-label', trans.__('Download this chart as PNG'));
    image.title = trans.__('Download this chart as PNG');
    const head = make('div', 'chart-head', {}, this.name, this.value);
    this.node = make('figure', 'chart', {}, head, this.plot, this.legend, image);
    this.sizes.observe(this.plot);
    this.plot.addEventListener('keydown', event => this.onKey(event));
  }

  update(spec: IChart): void {
    this.spec = spec;
    const packed = (lines: CurveLine[]) => lines.map(line => line.points).join(' ');
    const axis = spec.axis?.key ?? '';
    const names = spec.lines.map(line => line.name).join();
    const isOther = axis !== this.axis || names !== this.names;
    if (isOther || (!this.isDetailed && packed(this.lines) !== packed(spec.lines))) {
      this.axis = axis;
      this.names = names;
      this.isDetailed = false;
      this.setLines(spec.lines);
    } else if (spec.colors?.join() !== this.colors) {
      this.draw();
    }
    this.colors = spec.colors?.join();
    setText(this.name, spec.title);
    this.name.title = spec.title;
    this.updateLegend();
    this.value.toggleAttribute('data-nonfinite', !spec.finite);
    this.updateValue();
    const steps = spec.lines[0]?.steps ?? 0;
    const last = spec.colors
      ? spec.lines.map(line => `${line.name} ${line.last}`).join(', ')
      : spec.last;
    const label = spec.axis
      ? this.trans.__('%1: %2', spec.title, last)
      : this.trans.__('%1: %2 after %3 steps', spec.title, last, steps);
    setAttribute(this.plot, 'aria-label', label);
  }

  /** Draw with the current settings. */
  draw(): void {
    if (this.zoomed !== this.scaling.zoom) {
      this.zoomed = this.scaling.zoom;
      void this.loadDetail();
      this.setLines(this.spec.lines);
      return;
    }
    if (!this.points.length || !this.plot.clientWidth) {
      return; // not attached; drawn when it is resized
    }
    this.data = this.aligned();
    const layout = `${this.points.length} ${this.scaling.log} ${this.spec.highlighted} ${this.axis} ${this.spec.colors?.join()}`;
    if (!this.drawn || layout !== this.layout) {
      this.layout = layout;
      this.drawn?.destroy();
      this.palette = paletteOf(this.plot);
      this.drawn = new uPlot(this.options(), this.data, this.plot);
    } else {
      this.drawn.setData(this.data);
    }
  }

  private setLines(lines: CurveLine[]): void {
    this.lines = lines;
    this.points = lines.map((line, index) => this.placed(line.points, index));
    this.draw();
  }

  /** Decode points, and put them on the chart's axis. */
  private placed(packed: string, line: number): IPoints {
    const points = unpack(packed);
    return this.spec.axis?.place(points, line) ?? points;
  }

  /** Request the zoomed range at a higher resolution, if the line was downsampled. */
  private async loadDetail(): Promise<void> {
    const { zoomed } = this;
    const { detail, spec } = this;
    this.isDetailed = false;
    if (!detail || !zoomed || !spec.lines.some(line => line.means)) {
      return;
    }
    const [first, last] = zoomed;
    const detailed = await Promise.all(
      spec.lines.map(async line =>
        line.means
          ? ((await detail({ name: line.name, first, last }).catch(() => null)) ?? line)
          : line
      )
    );
    const isNew = detailed.some((line, index) => line !== spec.lines[index]);
    if (isNew && zoomed === this.zoomed && spec === this.spec) {
      this.isDetailed = true;
      this.setLines(detailed);
    }
  }

  /** Apply the colors of a new theme. */
  updateTheme(): void {
    this.layout = '';
    this.draw();
  }

  private download(): void {
    const canvas = this.plot.querySelector('canvas');
    if (canvas) {
      downloadImage(canvas, this.spec.title);
    }
  }

  dispose(): void {
    this.sizes.disconnect();
    this.drawn?.destroy();
  }

  private fit(): void {
    const width = this.plot.clientWidth;
    if (!this.drawn) {
      this.draw();
    } else if (width && width !== this.drawn.width) {
      this.drawn.setSize({ width, height: this.plot.clientHeight });
    }
  }

  /** Columns of steps and, for each line, values and smoothed values. */
  private aligned(): uPlot.AlignedData {
    const { smoothing, log } = this.scaling;
    const tables = this.points.map((raw, index): uPlot.AlignedData => {
      const { means } = this.lines[index];
      const even = smoothing
        ? smoothed(means ? this.placed(means, index) : raw, smoothing)
        : null;
      const soft = even
        ? drawable(interpolated(even, raw.x), log)
        : raw.x.map(() => null);
      return [raw.x, drawable(raw.y, log), soft];
    });
    return tables.length === 1 ? tables[0] : uPlot.join(tables);
  }

  /** Update the legend. */
  private updateLegend(): void {
    const { lines, highlighted } = this.spec;
    const layout = `${lines.map(line => line.name).join()} ${highlighted} ${this.spec.colors?.join()}`;
    this.legend.hidden = lines.length < 2 && !this.spec.colors;
    if (this.legend.hidden || this.legend.dataset.layout === layout) {
      return;
    }
    this.legend.dataset.layout = layout;
    this.entries = lines.map(({ name }, index) => {
      const entry = make('span', 'chart-entry', {}, name);
      entry.style.setProperty('--nbmgpu-line', this.color(index));
      return entry;
    });
    this.legend.replaceChildren(...this.entries);
  }

  private color(line: number): string {
    if (this.spec.colors) {
      return this.spec.colors[line];
    }
    if (line === 0) {
      return LINE;
    }
    return line === this.spec.highlighted
      ? HIGHLIGHT
      : OTHER_LINES[(line - 1) % OTHER_LINES.length];
  }

  private options(): uPlot.Options {
    const { scaling } = this;
    const series = this.points.flatMap((_, line): uPlot.Series[] => {
      const color = this.color(line);
      const width = line === 0 || line === this.spec.highlighted ? 1.5 : 1;
      return [
        {
          label: this.lines[line].name,
          stroke: () => (scaling.smoothing ? color + FAINT_ALPHA : color),
          width,
          // uPlot decides at each draw: points are drawn if they are this many pixels apart.
          points: { size: 5, width: 0, space: POINT_SPACING, fill: color }
        },
        { stroke: color, width: width + 0.5, points: { show: false } }
      ];
    });
    const muted = () => this.palette.muted;
    const grid = { stroke: () => this.palette.faint, width: 1 };
    const axis = {
      stroke: muted,
      grid,
      ticks: { show: false },
      font: '10px system-ui, sans-serif'
    };
    return {
      width: this.plot.clientWidth,
      height: this.plot.clientHeight,
      padding: [8, 10, 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        sync: { key: scaling.key, setSeries: false, scales: ['x', null] },
        drag: { x: true, y: false, setScale: false },
        points: { size: 6, width: 0 },
        bind: {
          dblclick: () => () => {
            scaling.zoomTo(null);
            return null;
          }
        }
      },
      scales: {
        x: {
          time: false,
          range: (_, low, high) => scaling.zoom ?? [low, Math.max(high, low + 1)]
        },
        y: { distr: scaling.log ? 3 : 1 }
      },
      axes: [
        {
          ...axis,
          size: 20,
          gap: 4,
          space: 60,
          values: (_, splits) =>
            splits.map(x => this.spec.axis?.format(x) ?? formatStep(x))
        },
        {
          ...axis,
          size: 46,
          gap: 4,
          space: 26,
          values: (_, splits) => splits.map(v => this.formatValue(v))
        }
      ],
      series: [{}, ...series],
      hooks: {
        drawClear: [plot => drawEpochs(plot, this.spec.epochs ?? [], this.palette.muted)],
        setCursor: [() => this.updateValue()],
        setSelect: [plot => this.onSelect(plot)]
      }
    };
  }

  private formatValue(value: number | null): string {
    if (value === null || value === undefined) {
      return '';
    }
    return formatIn(this.spec.unit, value);
  }

  /** Show the last value, or the values at the cursor. */
  private updateValue(): void {
    const at = this.drawn?.cursor.idx;
    const steps = this.data[0];
    const isOutside = at === null || at === undefined || at >= steps.length;
    if (this.spec.colors) {
      this.updateEntries(isOutside ? null : at);
      const position = isOutside ? '' : (this.spec.axis?.format(steps[at]) ?? steps[at]);
      setText(this.value, String(position));
      return;
    }
    if (isOutside) {
      setText(this.value, this.spec.last);
      return;
    }
    const values = this.points.map((_, line) => {
      const value = this.data[2 * line + 1]?.[at];
      const name = line ? `${this.lines[line].name} ` : ''; // the title of the chart names the first
      return typeof value === 'number' ? name + this.formatValue(value) : '';
    });
    setText(
      this.value,
      this.trans.__('%1 at %2', values.filter(Boolean).join(' · ') || '–', steps[at])
    );
  }

  /** Show each line's last value, or its value nearest to the cursor, in the legend. */
  private updateEntries(at: number | null): void {
    this.lines.forEach(({ name, last }, line) => {
      const value =
        at === null ? null : nearest(this.data[2 * line + 1], this.data[0], at);
      const text = at === null ? last : value === null ? '–' : this.formatValue(value);
      if (this.entries[line]) {
        setText(this.entries[line], `${name} ${text}`);
      }
    });
  }

  private onSelect(plot: uPlot): void {
    const { left, width } = plot.select;
    if (width > 4) {
      this.scaling.zoomTo([plot.posToVal(left, 'x'), plot.posToVal(left + width, 'x')]);
    }
    if (width) {
      plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    }
  }

  /** Arrow keys move the cursor along the points; Escape removes it and resets the zoom. */
  private onKey(event: KeyboardEvent): void {
    const plot = this.drawn;
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!plot || (!by && event.key !== 'Escape')) {
      return;
    }
    event.preventDefault();
    if (!by) {
      plot.setCursor({ left: -10, top: -10 });
      this.scaling.zoomTo(null);
      return;
    }
    const last = this.data[0].length - 1;
    const from = plot.cursor.idx ?? (by > 0 ? -1 : last + 1);
    const step = this.data[0][Math.min(Math.max(from + by, 0), last)];
    plot.setCursor({ left: plot.valToPos(step, 'x'), top: 10 });
  }
}
