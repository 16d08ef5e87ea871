import type uPlot from 'uplot';
import { valueColumn } from './chartdata';
import { marksOf, type IExtremes } from './chartmarks';
import { lineStyle, type IChart, type IScaling } from './chartspec';
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
    create(
      trans.__('Download this chart as PNG'),
      'PNG',
      chart => void downloadPng(chart, trans)
    ),
    create(trans.__('Download this chart as SVG'), 'SVG', chart =>
      downloadSvg(chart, trans)
    )
  );
}

/** Pixels of a PNG for each of the page: papers and slides show it larger. */
const SCALE = 2;

/** Download a chart as a PNG: its SVG, drawn. */
async function downloadPng(drawn: IDrawnChart, trans: ITranslate): Promise<void> {
  const svg = svgOf(drawn, trans);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = make('canvas');
  canvas.width = SCALE * image.width;
  canvas.height = SCALE * image.height;
  canvas.getContext('2d')?.drawImage(image, 0, 0, canvas.width, canvas.height);
  downloadUrl(canvas.toDataURL('image/png'), fileName(drawn.spec.title, 'png'));
}

/** Download a chart as an SVG. */
function downloadSvg(drawn: IDrawnChart, trans: ITranslate): void {
  const name = fileName(drawn.spec.title, 'svg');
  downloadText(svgOf(drawn, trans), name, 'image/svg+xml');
}

/** A chart as SVG with its title, axes and legend, on the background of the page. */
function svgOf(drawn: IDrawnChart, trans: ITranslate): string {
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
    text: spec.styles ? `${name} ${last}` : name,
    style: lineStyle(spec, line)
  }));
  const chart: ISvgChart = {
    title: spec.title,
    axis: spec.axis?.title ?? trans.__('Step'),
    ticks,
    lines: svgLines(drawn),
    legend: spec.styles || spec.lines.length > 1 ? legend : [],
    epochs: spec.epochs ?? [],
    colors: pageColors(plot.root)
  };
  return chartSvg(plot, chart, textWidth);
}

/** Each line, and behind its smoothed one the values in a faint color, as they are drawn. */
function svgLines({ spec, scaling, extremes }: IDrawnChart): ISvgLine[] {
  return spec.lines.flatMap(({ name }, line) => {
    const width = lineWidth(spec, line);
    const values = {
      name,
      style: lineStyle(spec, line),
      width,
      opacity: scaling.smoothing ? SMOOTHED_OPACITY : 1,
      column: valueColumn(line),
      hasPoints: true,
      marked: marksOf(extremes[line])
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
