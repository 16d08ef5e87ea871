import type { CurveLine, CurveRequest, Unit } from '../generated/report';
import type { IPoints } from './points';
import type { ILineStyle } from './linestyle';
import { HIGHLIGHT, LINE, OTHER_LINES } from './theme';

/** The content of a chart. */
export interface IChart {
  key: string;
  title: string;
  last: string;
  /** What to say below the title. */
  note?: string;
  finite: boolean;
  lines: CurveLine[];
  /** The unit of the values. */
  unit: 'number' | 'seconds' | Unit;
  /** The index of the highlighted line, or -1. */
  highlighted: number;
  /** A style for each line, if the lines are of the same kind. */
  styles?: readonly ILineStyle[];
  /** The steps at which epochs end. */
  epochs?: readonly number[];
  /** The horizontal axis, by default the step. */
  axis?: IAxis;
}

/** A horizontal axis other than the step. */
export interface IAxis {
  /** Charts are drawn again when the key changes. */
  readonly key: string;
  /** Its name in the user's language. */
  readonly title: string;
  /** The points of a line, by index, on this axis. */
  place(points: IPoints, line: number): IPoints;
  /** Format a position. */
  format(position: number): string;
}

/** A chart without content. */
export const NO_CHART: IChart = {
  key: '',
  title: '',
  last: '',
  finite: true,
  lines: [],
  unit: 'number',
  highlighted: -1
};

/** The style of the line at an index. */
export function lineStyle({ styles, highlighted }: IChart, line: number): ILineStyle {
  if (styles) {
    return styles[line];
  }
  const other = OTHER_LINES[(line - 1) % OTHER_LINES.length];
  return {
    color: line === 0 ? LINE : line === highlighted ? HIGHLIGHT : other,
    dash: ''
  };
}

/** The styles of a chart's lines, as a key. */
export function styleKey({ styles, highlighted }: IChart): string {
  const each = styles?.map(({ color, dash }) => `${color} ${dash}`) ?? [];
  return [highlighted, ...each].join();
}

/** Whether a chart has a legend, with the values of its lines. */
export function hasLegend({ lines, styles }: IChart): boolean {
  return lines.length > 1 || styles !== undefined;
}

/** The settings shared by all charts of a view; the zoom is a range of steps. */
export interface IScaling {
  smoothing: number;
  log: boolean;
  zoom: [number, number] | null;
  readonly key: string;
  zoomTo(zoom: [number, number] | null): void;
}

/** Requests a range of a metric at a higher resolution. */
export type Detail = (request: CurveRequest) => Promise<CurveLine | null>;
