import type uPlot from 'uplot';
import type { ILineStyle } from './linestyle';
import type { IPageColors } from './pagecolors';

/** A label of an axis: its value on the scale, and its text. */
export interface ITick {
  readonly at: number;
  readonly text: string;
}

/** A line of a chart. */
export interface ISvgLine {
  readonly name: string;
  readonly style: ILineStyle;
  /** In pixels. */
  readonly width: number;
  /** Between 0 and 1. */
  readonly opacity: number;
  /** Its column in the data. */
  readonly column: number;
  /** Whether each point is drawn where they are as far apart as `POINT_SPACING`. */
  readonly hasPoints: boolean;
  /** The indices of points that get a ring. */
  readonly marked: readonly number[];
}

/** What is drawn of a chart, beside its data. */
export interface ISvgChart {
  readonly title: string;
  /** Below the horizontal axis. */
  readonly axis: string;
  readonly ticks: { readonly x: readonly ITick[]; readonly y: readonly ITick[] };
  readonly lines: readonly ISvgLine[];
  readonly legend: readonly { readonly text: string; readonly style: ILineStyle }[];
  /** The positions at which epochs end. */
  readonly epochs: readonly number[];
  readonly colors: IPageColors;
}

const NAMESPACE = 'http://www.w3.org/2000/svg';
const FONT = 'system-ui, sans-serif';

/** Heights in pixels: of the title above the plot, and of a line of text below it. */
const TITLE = 24;
const ROW = 16;

/** Pixels between the edge and texts, between entries of the legend, and of an entry's line. */
const MARGIN = 8;
const GAP = 14;
const SWATCH = 24;

/** The radius of the ring around the lowest or the highest point, in pixels. */
const RADIUS = 3.5;

/** The diameter of a point, in pixels. */
export const POINT_SIZE = 5;

/** Pixels between two points from which on each point is drawn, not only the line. */
export const POINT_SPACING = 12;

/** Characters that XML does not allow, and other control characters. */
const INVALID = /[\p{Cc}\p{Cs}\ufffe\uffff]/gu;

/** The parts of uPlot that tell where a value is drawn. */
export type IPlaces = Pick<uPlot, 'width' | 'height' | 'over' | 'valToPos' | 'data'>;

/**
 * A chart as an SVG document of its own, as it is drawn: without styles, scripts or fonts, so that
 * editors and papers show it as browsers do.
 *
 * @param textWidth the width of a text in the legend, in pixels.
 */
export function chartSvg(
  plot: IPlaces,
  chart: ISvgChart,
  textWidth: (text: string) => number
): string {
  const { colors } = chart;
  const [left, top] = [plot.over.offsetLeft, plot.over.offsetTop + TITLE];
  const [width, height] = [plot.over.offsetWidth, plot.over.offsetHeight];
  const rows = legendRows(chart.legend, plot.width - 2 * MARGIN, textWidth);
  const total = plot.height + TITLE + ROW * (rows.length + 1) + MARGIN;
  const x = (value: number): number => rounded(left + plot.valToPos(value, 'x'));
  const y = (value: number): number => rounded(top + plot.valToPos(value, 'y'));
  const isInside = (value: number): boolean =>
    x(value) >= left - 0.5 && x(value) <= left + width + 0.5;

  const area = element('g', { 'clip-path': 'url(#plot)' });
  for (const epoch of chart.epochs.filter(isInside)) {
    const place = { x1: x(epoch), x2: x(epoch), y1: top, y2: top + height };
    area.append(line(place, colors.muted, { 'stroke-dasharray': '2 4' }));
  }
  for (const each of chart.lines) {
    const path = element('path', {
      d: pathOf(plot.data[0], plot.data[each.column], x, y),
      fill: 'none',
      stroke: each.style.color,
      ...dashed(each.style),
      'stroke-width': each.width,
      'stroke-opacity': each.opacity,
      'stroke-linecap': 'round',
      'stroke-linejoin': 'round'
    });
    path.append(element('title', {}, each.name));
    area.append(path);
    const visible = pointsOf(plot, each).filter(([position]) => isInside(position));
    if (each.hasPoints && visible.length * POINT_SPACING <= width) {
      const [r, fill] = [POINT_SIZE / 2, each.style.color];
      const place = ([position, value]: [number, number]) => ({
        cx: x(position),
        cy: y(value)
      });
      area.append(
        ...visible.map(point => element('circle', { ...place(point), r, fill }))
      );
    }
  }
  const marks = chart.lines.flatMap(({ marked, column, style }) =>
    marked.map(index =>
      element('circle', {
        cx: x(Number(plot.data[0][index])),
        cy: y(Number(plot.data[column][index])),
        r: RADIUS,
        fill: 'none',
        stroke: style.color,
        'stroke-width': 1.5
      })
    )
  );
  const box = { x: left, y: top, width, height };
  const clip = element('clipPath', { id: 'plot' }, element('rect', box));
  const bottom = top + height;
  const root = element(
    'svg',
    {
      width: plot.width,
      height: total,
      viewBox: `0 0 ${plot.width} ${total}`,
      'font-family': FONT
    },
    element('title', {}, chart.title),
    element('defs', {}, clip),
    element('rect', { width: plot.width, height: total, fill: colors.background }),
    label({ x: MARGIN, y: 16 }, chart.title, 13, colors.text),
    ...chart.ticks.x.flatMap(({ at, text }) => [
      line({ x1: x(at), x2: x(at), y1: top, y2: bottom }, colors.grid),
      label({ x: x(at), y: bottom + 14 }, text, 10, colors.muted, 'middle')
    ]),
    ...chart.ticks.y.flatMap(({ at, text }) => [
      line({ x1: left, x2: left + width, y1: y(at), y2: y(at) }, colors.grid),
      label({ x: left - 4, y: y(at) + 3.5 }, text, 10, colors.muted, 'end')
    ]),
    area,
    ...marks,
    label({ x: left + width, y: bottom + 14 + ROW }, chart.axis, 10, colors.muted, 'end'),
    ...rows.flatMap((row, index) =>
      row.flatMap(({ at, text, style }) => {
        const y = plot.height + TITLE + ROW * (index + 1) + MARGIN;
        const place = { x1: at, x2: at + SWATCH - 4, y1: y - 4, y2: y - 4 };
        return [
          line(place, style.color, { 'stroke-width': 2, ...dashed(style) }),
          label({ x: at + SWATCH, y }, text, 11, colors.muted)
        ];
      })
    )
  );
  return new XMLSerializer().serializeToString(root);
}

function dashed({ dash }: ILineStyle): Record<string, string> {
  return dash ? { 'stroke-dasharray': dash } : {};
}

/** The positions and values of a line, without gaps. */
function pointsOf({ data }: IPlaces, { column }: ISvgLine): [number, number][] {
  return [...data[column]].flatMap((value, index) =>
    typeof value === 'number' ? [[Number(data[0][index]), value]] : []
  );
}

/** The entries of the legend, each with its place, in rows of at most `width` pixels. */
function legendRows(
  legend: ISvgChart['legend'],
  width: number,
  textWidth: (text: string) => number
): (ISvgChart['legend'][number] & { at: number })[][] {
  const rows: (ISvgChart['legend'][number] & { at: number })[][] = [];
  let next = Infinity;
  for (const entry of legend) {
    const needed = SWATCH + textWidth(entry.text);
    if (next + needed > width) {
      rows.push([]);
      next = 0;
    }
    rows[rows.length - 1].push({ ...entry, at: MARGIN + next });
    next += needed + GAP;
  }
  return rows;
}

/**
 * The path of a line: null is a gap, and where a line has no point at a position of another one, it
 * goes on to its next.
 */
function pathOf(
  positions: uPlot.AlignedData[number],
  values: uPlot.AlignedData[number],
  x: (value: number) => number,
  y: (value: number) => number
): string {
  const parts: string[] = [];
  let isGap = true;
  for (let index = 0; index < values.length; index += 1) {
    const value = values[index];
    if (value === undefined) {
      continue;
    }
    if (value === null) {
      isGap = true;
      continue;
    }
    const place = `${x(Number(positions[index]))} ${y(value)}`;
    // A point alone becomes a dot: a line of no length with round ends.
    parts.push(isGap ? `M${place}h0` : `L${place}`);
    isGap = false;
  }
  return parts.join('');
}

function line(
  place: { x1: number; x2: number; y1: number; y2: number },
  stroke: string,
  more: Record<string, string | number> = {}
): SVGElement {
  return element('line', { ...place, stroke, ...more });
}

function label(
  place: { x: number; y: number },
  text: string,
  size: number,
  fill: string,
  anchor = 'start'
): SVGElement {
  const more = { 'font-size': size, fill, 'text-anchor': anchor };
  return element('text', { ...place, ...more }, text);
}

function element(
  tag: string,
  attributes: Record<string, string | number>,
  ...children: (Node | string)[]
): SVGElement {
  const node = document.createElementNS(NAMESPACE, tag) as SVGElement;
  for (const [key, value] of Object.entries(attributes)) {
    node.setAttribute(key, String(value));
  }
  node.append(
    ...children.map(child =>
      typeof child === 'string' ? child.replace(INVALID, '\ufffd') : child
    )
  );
  return node;
}

/** Tenths of a pixel. */
function rounded(value: number): number {
  return Math.round(10 * value) / 10;
}
