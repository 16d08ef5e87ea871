import type uPlot from 'uplot';
import { lineColor, type IChart, type IScaling } from './chartspec';
import { formatIn, formatStep } from './charttext';
import { drawEpochs } from './epochlines';
import type { IPalette } from './theme';

/** Appended to a color: opacity of a line behind its smoothed one. */
const FAINT_ALPHA = '59';

/** Pixels between two points from which on each point is drawn, not only the line. */
const POINT_SPACING = 12;

/** What a drawn chart depends on; `spec` is read at each draw. */
export interface IDrawing {
  readonly size: { width: number; height: number };
  readonly scaling: IScaling;
  readonly palette: IPalette;
  spec(): IChart;
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
        values: (_, splits) => splits.map(x => spec().axis?.format(x) ?? formatStep(x))
      },
      {
        ...axis,
        size: 46,
        space: 26,
        values: (_, splits) =>
          splits.map(value => (value === null ? '' : formatIn(spec().unit, value)))
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

/** A line, and its smoothed one. */
function lineSeries(spec: IChart, line: number, scaling: IScaling): uPlot.Series[] {
  const color = lineColor(spec, line);
  const width = line === 0 || line === spec.highlighted ? 1.5 : 1;
  return [
    {
      label: spec.lines[line].name,
      stroke: () => (scaling.smoothing ? color + FAINT_ALPHA : color),
      width,
      // uPlot decides at each draw: points are drawn if they are this many pixels apart.
      points: { size: 5, width: 0, space: POINT_SPACING, fill: color }
    },
    { stroke: color, width: width + 0.5, points: { show: false } }
  ];
}
