import type uPlot from 'uplot';
import { valueColumn } from './chartdata';
import type { IExtremes } from './chartmarks';
import { lineColor, type IChart, type IScaling } from './chartspec';
import { chartSvg, type ISvgChart, type ISvgLine } from './chartsvg';
import { button, make, setAttribute } from './dom';
import { downloadText, downloadUrl, fileName } from './download';
import { lineWidth, SMOOTHED_OPACITY } from './linestyle';
import { pageColors } from './pagecolors';
import type { ITranslate } from './source';

/** A chart as it is drawn now. */
export interface IDrawnChart {
  readonly plot: uPlot;
  readonly spec: IChart;
  readonly scaling: IScaling;
  readonly ticks: ISvgChart['ticks'];
  /** Of each line that has marks. */
  readonly extremes: readonly (IExtremes | null)[];
}

/** Buttons that download a chart as PNG and as SVG. */
export function imageButtons(
  trans: ITranslate,
  drawn: () => IDrawnChart | null
): HTMLElement {
  const create = (label: string, text: string, save: (chart: IDrawnChart) => void) => {
    const node = button('chart-image', text, () => {
      const chart = drawn();
      if (chart) {
        save(chart);
      }
    });
    setAttribute(node, 'aria-label', label);
    node.title = label;
    return node;
  };
  return make(
    'div',
    'chart-images',
    {},
    create(trans.__('Download this chart as PNG'), 'PNG', downloadPng),
    create(trans.__('Download this chart as SVG'), 'SVG', chart =>
      downloadSvg(chart, trans)
    )
  );
}

/** Download a chart's canvas as a PNG with its title and the background of the page. */
function downloadPng({ plot, spec: { title } }: IDrawnChart): void {
  const { canvas } = plot.ctx;
  const scale = window.devicePixelRatio || 1;
  const margin = 24 * scale;
  const image = document.createElement('canvas');
  image.width = canvas.width;
  image.height = canvas.height + margin;
  const context = image.getContext('2d');
  if (!context) {
    return;
  }
  const { background, text } = pageColors(plot.root);
  context.fillStyle = background;
  context.fillRect(0, 0, image.width, image.height);
  context.drawImage(canvas, 0, margin);
  context.fillStyle = text;
  context.font = `${13 * scale}px system-ui, sans-serif`;
  context.fillText(title, 8 * scale, 16 * scale);
  downloadUrl(image.toDataURL('image/png'), fileName(title, 'png'));
}

/** Download a chart as an SVG with its title, axes and legend, on the background of the page. */
function downloadSvg(drawn: IDrawnChart, trans: ITranslate): void {
  const { plot, spec, ticks } = drawn;
  const context = document.createElement('canvas').getContext('2d');
  const textWidth = (text: string): number => {
    if (!context) {
      return 7 * text.length;
    }
    context.font = '11px system-ui, sans-serif';
    return context.measureText(text).width;
  };
  const legend = spec.lines.map(({ name, last }, line) => ({
    text: spec.colors ? `${name} ${last}` : name,
    color: lineColor(spec, line)
  }));
  const chart: ISvgChart = {
    title: spec.title,
    axis: spec.axis?.title ?? trans.__('Step'),
    ticks,
    lines: svgLines(drawn),
    legend: spec.colors || spec.lines.length > 1 ? legend : [],
    epochs: spec.epochs ?? [],
    colors: pageColors(plot.root)
  };
  const text = chartSvg(plot, chart, textWidth);
  downloadText(text, fileName(spec.title, 'svg'), 'image/svg+xml');
}

/** Each line, and behind its smoothed one the values in a faint color, as they are drawn. */
function svgLines({ spec, scaling, extremes }: IDrawnChart): ISvgLine[] {
  return spec.lines.flatMap(({ name }, line) => {
    const width = lineWidth(spec, line);
    const found = extremes[line];
    const values = {
      name,
      color: lineColor(spec, line),
      width,
      opacity: scaling.smoothing ? SMOOTHED_OPACITY : 1,
      column: valueColumn(line),
      hasPoints: true,
      marked: found ? [found.lowest, found.highest] : []
    };
    const smoothed = {
      ...values,
      width: width + 0.5,
      opacity: 1,
      column: values.column + 1,
      hasPoints: false,
      marked: []
    };
    return scaling.smoothing ? [values, smoothed] : [values];
  });
}
