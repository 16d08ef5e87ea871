import type uPlot from 'uplot';
import type { CurveLine } from '../generated/report';
import { valueColumn } from './chartdata';
import type { IExtremes } from './chartmarks';
import { hasLegend, type IChart } from './chartspec';
import { formatIn, nearest } from './charttext';
import type { ITranslate } from './source';

/** What the texts of a chart are about. */
export interface IChartContent {
  readonly spec: IChart;
  /** The lines that are drawn. */
  readonly lines: readonly CurveLine[];
  readonly data: uPlot.AlignedData;
  /** Of each line that has marks. */
  readonly extremes: readonly (IExtremes | null)[];
  readonly trans: ITranslate;
}

/** The description of a chart, and the tooltip of its title, which names the extremes. */
export function descriptionOf(content: IChartContent): {
  label: string;
  tooltip: string;
} {
  const { extremes, spec, trans } = content;
  const { lines } = spec;
  const last = spec.styles
    ? lines.map(line => `${line.name} ${line.last}`).join(', ')
    : spec.last;
  const label = spec.axis
    ? trans.__('%1: %2', spec.title, last)
    : trans.__('%1: %2 after %3 steps', spec.title, last, lines[0]?.steps ?? 0);
  const found = extremes.flatMap((marked, line) => {
    const at = (index: number): [string, string] => [
      valueText(content, line, index),
      positionText(content, index)
    ];
    const { lowest, highest } = marked ?? {};
    const text = [
      lowest === undefined ? '' : trans.__('lowest %1 at %2', ...at(lowest)),
      highest === undefined ? '' : trans.__('highest %1 at %2', ...at(highest))
    ]
      .filter(Boolean)
      .join(', ');
    if (!text) {
      return [];
    }
    return [lines.length > 1 ? trans.__('%1: %2', lines[line].name, text) : text];
  });
  return {
    label: [label, spec.note, ...found].filter(Boolean).join('; '),
    tooltip: [spec.title, ...found].join('\n')
  };
}

/** The text beside the title: the last value, or what is at the cursor. */
export function headText(content: IChartContent, at: number | null): string {
  const { extremes, spec, trans } = content;
  if (at === null) {
    return spec.styles ? '' : spec.last;
  }
  if (hasLegend(spec)) {
    return positionText(content, at); // the legend has the values
  }
  const value = valueText(content, 0, at) || '–';
  const mark = markAt(extremes[0], at);
  const text = {
    lowest: () => trans.__('%1 (lowest)', value),
    highest: () => trans.__('%1 (highest)', value)
  };
  return trans.__('%1 at %2', mark ? text[mark]() : value, positionText(content, at));
}

/** Each line's last value, or its value nearest to the cursor, for the legend. */
export function legendTexts(content: IChartContent, at: number | null): string[] {
  const { data, extremes, lines, spec, trans } = content;
  return lines.map(({ last }, line) => {
    if (at === null) {
      return last;
    }
    const value = nearest(data[valueColumn(line)], data[0], at);
    if (value === null) {
      return '–';
    }
    // Short words: the legend reserves their room, so that it does not move with the cursor.
    const text = formatIn(spec.unit, value);
    const mark = markAt(extremes[line], at);
    return {
      lowest: () => trans.__('%1 min', text),
      highest: () => trans.__('%1 max', text),
      none: () => text
    }[mark ?? 'none']();
  });
}

function positionText({ data, spec }: IChartContent, index: number): string {
  const position = data[0][index];
  return spec.axis?.format(position) ?? String(position);
}

function valueText({ data, spec }: IChartContent, line: number, index: number): string {
  const value = data[valueColumn(line)]?.[index];
  return typeof value === 'number' ? formatIn(spec.unit, value) : '';
}

/** Whether a line has its lowest or its highest value at an index. */
function markAt(found: IExtremes | null, at: number): keyof IExtremes | null {
  if (found?.lowest === at) {
    return 'lowest';
  }
  return found?.highest === at ? 'highest' : null;
}
