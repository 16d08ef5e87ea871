import type uPlot from 'uplot';
import { lineStyle, type IChart, type IScaling } from './chartspec';
import { formatIn, formatStep } from './charttext';
import { POINT_SIZE, POINT_SPACING, type ITick } from './chartsvg';
import { drawEpochs } from './epochlines';
import { dashLengths, lineWidth, SMOOTHED_OPACITY } from './linestyle';
import type { IPalette } from './theme';

/** Appended to a color: the opacity of a line behind its smoothed one. */
const FAINT_ALPHA = Math.round(255 * SMOOTHED_OPACITY).toString(16);

/** Steps between labels, also of losses that diverge: uPlot's own end at 1e16. */
const STEPS = Array.from({ length: 64 }, (_, index) => index - 22).flatMap(exponent =>
  [1, 2, 2.5, 5].map(digit => Number(`${digit}e${exponent}`))
);

/** The width of the labels of a vertical axis, in pixels, so that charts are aligned. */
const LABEL_WIDTH = 46;

/** What a drawn chart depends on; `spec` is read at each draw. */
export interface IDrawing {
  readonly size: { width: number; height: number };
  readonly scaling: IScaling;
  readonly palette: IPalette;
  spec(): IChart;
  /** Called before each draw with the labels of an axis. */
  onTicks(axis: 'x' | 'y', ticks: ITick[]): void;
  onDrawn(plot: uPlot): void;
  onCursor(): void;
  onSelect(plot: uPlot): void;
}

/** The options of uPlot for a chart. */
export function chartOptions(drawing: IDrawing): uPlot.Options {
  const { scaling, palette, spec } = drawing;
  const axis = {
    stroke: () => palette.muted,
    grid: { stroke: () => palette.faint, width: 1 },
    ticks: { show: false },
    font: '10px system-ui, sans-serif',
    gap: 4
  };
  /** The text of each label; on a logarithmic scale, uPlot leaves some out by null. */
  const labelled = (
    of: 'x' | 'y',
    splits: (number | null)[],
    format: (value: number) => string
  ): string[] => {
    const texts = splits.map(at => (at === null ? '' : format(at)));
    const ticks = splits.map((at, index) => ({ at: at ?? NaN, text: texts[index] }));
    drawing.onTicks(
      of,
      ticks.filter(({ text }) => text)
    );
    return texts;
  };
  return {
    ...drawing.size,
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
        space: 60,
        values: (_, splits) =>
          labelled('x', splits, x => spec().axis?.format(x) ?? formatStep(x))
      },
      {
        ...axis,
        size: (plot, texts) => Math.max(LABEL_WIDTH, labelWidth(plot, texts, axis.font)),
        space: 26,
        incrs: STEPS,
        values: (_, splits) => labelled('y', splits, y => formatIn(spec().unit, y))
      }
    ],
    series: [{}, ...spec().lines.flatMap((_, line) => lineSeries(spec(), line, scaling))],
    hooks: {
      drawClear: [plot => drawEpochs(plot, spec().epochs ?? [], palette.muted)],
      draw: [drawing.onDrawn],
      setCursor: [drawing.onCursor],
      setSelect: [drawing.onSelect]
    }
  };
}

/** The width of the longest of some labels with its gaps, in pixels. */
function labelWidth(plot: uPlot, texts: string[] | null, font: string): number {
  const { ctx } = plot;
  ctx.save();
  ctx.font = font;
  const widths = (texts ?? []).map(text => ctx.measureText(text).width);
  ctx.restore();
  return Math.ceil(Math.max(0, ...widths)) + 10;
}

/** A line, and its smoothed one. */
function lineSeries(spec: IChart, line: number, scaling: IScaling): uPlot.Series[] {
  const style = lineStyle(spec, line);
  const { color } = style;
  // uPlot scales widths, but not dashes, to the pixels of the screen.
  const dash = dashLengths(style).map(length => length * (window.devicePixelRatio || 1));
  const width = lineWidth(spec, line);
  return [
    {
      label: spec.lines[line].name,
      stroke: () => (scaling.smoothing ? color + FAINT_ALPHA : color),
      width,
      dash,
      // uPlot decides at each draw: points are drawn if they are this many pixels apart.
      points: { size: POINT_SIZE, width: 0, space: POINT_SPACING, fill: color }
    },
    { stroke: color, width: width + 0.5, dash, points: { show: false } }
  ];
}
