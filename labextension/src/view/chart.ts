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
import { alignedData, valueColumn } from './chartdata';
import { imageButtons } from './chartimage';
import { ChartLegend } from './chartlegend';
import { drawMarks, markedExtremes, type IExtremes } from './chartmarks';
import { chartOptions } from './chartoptions';
import {
  hasLegend,
  lineStyle,
  NO_CHART,
  styleKey,
  type Detail,
  type IChart,
  type IScaling
} from './chartspec';
import type { ISvgChart } from './chartsvg';
import { descriptionOf, headText, legendTexts, type IChartContent } from './chartlabels';
import { make, setAttribute, setText, type IItemView } from './dom';
import { drawingQueue } from './framequeue';
import { unpack, type IPoints } from './points';
import type { ITranslate } from './source';
import { paletteOf } from './theme';

/** A chart with its title, its last or hovered values, and a legend. */
export class Chart implements IItemView<IChart> {
  readonly node: HTMLElement;
  private name = make('span', 'chart-name');
  private value = make('span', 'chart-value');
  private note = make('div', 'chart-note');
  private plot = make('div', 'chart-plot', { role: 'img', tabindex: '0' });
  private legend = new ChartLegend();
  private spec = NO_CHART;
  /** The lines that are drawn: of the whole run, or of the zoomed range at a higher resolution. */
  private lines: CurveLine[] = [];
  private points: IPoints[] = [];
  private zoomed: IScaling['zoom'] = null;
  private isDetailed = false;
  private axis = '';
  private names = '';
  private styles = '';
  private data: uPlot.AlignedData = [[]];
  /** The extremes of each line that has marks. */
  private extremes: (IExtremes | null)[] = [];
  private drawn: uPlot | null = null;
  private ticks: ISvgChart['ticks'] = { x: [], y: [] };
  private layout = '';
  private sizes = new ResizeObserver(() => this.fit());
  private readonly drawNow = () => this.draw();

  constructor(
    private scaling: IScaling,
    private trans: ITranslate,
    private detail?: Detail
  ) {
    const images = imageButtons(trans, () => {
      const { drawn: plot, spec, scaling, ticks, extremes } = this;
      return plot && { plot, spec, scaling, ticks, extremes };
    });
    const head = make('div', 'chart-head', {}, this.name, this.value);
    const parts = [head, this.note, this.plot, this.legend.node, images];
    this.node = make('figure', 'chart', {}, ...parts);
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
      if (isOther) {
        // They belong to lines or an axis that the texts are no longer about.
        this.data = [[]];
        this.extremes = [];
      }
      this.setLines(spec.lines);
      this.requestDraw();
    } else if (styleKey(spec) !== this.styles) {
      this.requestDraw();
    }
    this.styles = styleKey(spec);
    setText(this.name, spec.title);
    setText(this.note, spec.note ?? '');
    this.legend.update(spec);
    this.value.toggleAttribute('data-nonfinite', !spec.finite);
    this.updateValue();
    this.updateLabel();
  }

  /** Draw with the current settings before one of the next frames. */
  requestDraw(): void {
    drawingQueue.add(this.drawNow);
  }

  /** Draw with the current settings. */
  private draw(): void {
    if (this.zoomed !== this.scaling.zoom) {
      this.zoomed = this.scaling.zoom;
      void this.loadDetail();
      this.setLines(this.spec.lines);
    }
    if (!this.points.length || !this.plot.clientWidth) {
      return; // not attached; drawn when it is resized
    }
    this.align();
    const layout = `${this.points.length} ${this.scaling.log} ${this.axis} ${styleKey(this.spec)}`;
    if (!this.drawn || layout !== this.layout) {
      this.layout = layout;
      this.drawn?.destroy();
      const options = chartOptions({
        size: { width: this.plot.clientWidth, height: this.plot.clientHeight },
        scaling: this.scaling,
        palette: paletteOf(this.plot),
        spec: () => this.spec,
        onTicks: (of, ticks) => (this.ticks = { ...this.ticks, [of]: ticks }),
        onDrawn: plot => this.drawMarks(plot),
        onCursor: () => this.updateValue(),
        onSelect: plot => this.onSelect(plot)
      });
      this.drawn = new uPlot(options, this.data, this.plot);
    } else {
      const { data, drawn } = this;
      // By itself, uPlot draws after the callback, where the queue does not measure how long it takes.
      drawn.batch(() => drawn.setData(data));
    }
    this.updateValue();
    this.updateLabel();
  }

  private setLines(lines: CurveLine[]): void {
    if (lines !== this.lines) {
      this.lines = lines;
      this.points = lines.map((line, index) => this.placed(line.points, index));
    }
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
      this.requestDraw();
    }
  }

  /** Apply the colors of a new theme. */
  updateTheme(): void {
    this.layout = '';
    this.requestDraw();
  }

  dispose(): void {
    drawingQueue.delete(this.drawNow);
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

  /** Compute the columns that are drawn, and their extremes. */
  private align(): void {
    const placed = this.points.map((points, index) => {
      const { means } = this.lines[index];
      const needsMeans = means && this.scaling.smoothing;
      return { points, means: needsMeans ? this.placed(means, index) : null };
    });
    this.data = alignedData(placed, this.scaling);
    const values = this.points.map((_, line) => this.data[valueColumn(line)]);
    // Of lines without styles of their own, the first is the one that matters.
    const marked = this.spec.styles ? values : values.slice(0, 1);
    const found = markedExtremes(this.data[0], marked, this.scaling.zoom);
    this.extremes = values.map((_, line) => found[line] ?? null);
  }

  private drawMarks(plot: uPlot): void {
    const lines = this.extremes.map((extremes, line) => ({
      extremes,
      column: valueColumn(line),
      color: lineStyle(this.spec, line).color
    }));
    drawMarks(plot, lines);
  }

  /** Name the extremes of each marked line in the title's tooltip, and describe the chart. */
  private updateLabel(): void {
    const { label, tooltip } = descriptionOf(this.content());
    setAttribute(this.plot, 'aria-label', label);
    setAttribute(this.name, 'title', tooltip);
  }

  /** Show the last value, or the values at the cursor. */
  private updateValue(): void {
    const at = this.drawn?.cursor.idx;
    const isOutside = at === null || at === undefined || at >= this.data[0].length;
    const content = this.content();
    setText(this.value, headText(content, isOutside ? null : at));
    if (hasLegend(this.spec)) {
      this.legend.showValues(legendTexts(content, isOutside ? null : at));
    }
  }

  private content(): IChartContent {
    const { spec, lines, data, extremes, trans } = this;
    return { spec, lines, data, extremes, trans };
  }

  private onSelect(plot: uPlot): void {
    const { left, width } = plot.select;
    // All charts of a view get the selection, but only that below the pointer has an event.
    if (width > 4 && plot.cursor.event) {
      this.scaling.zoomTo([plot.posToVal(left, 'x'), plot.posToVal(left + width, 'x')]);
    }
    if (width) {
      plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    }
  }

  /** Arrow keys move the cursors of all charts along the points; Escape removes them and the zoom. */
  private onKey(event: KeyboardEvent): void {
    const plot = this.drawn;
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!plot || (!by && event.key !== 'Escape')) {
      return;
    }
    event.preventDefault();
    if (!by) {
      moveCursors(plot, -10, -10);
      this.scaling.zoomTo(null);
      return;
    }
    const [steps] = plot.data;
    const last = steps.length - 1;
    const from = plot.cursor.idx ?? (by > 0 ? -1 : last + 1);
    const step = steps[Math.min(Math.max(from + by, 0), last)];
    moveCursors(plot, plot.valToPos(step, 'x'), 10);
  }
}

/** Move the cursor of a chart, and with it those of all charts of its view. */
function moveCursors(plot: uPlot, left: number, top: number): void {
  // uPlot's types leave out its last parameter: whether charts with the same key follow.
  const move = plot.setCursor as (
    at: { left: number; top: number },
    notify: boolean,
    others: boolean
  ) => void;
  move({ left, top }, true, true);
}
