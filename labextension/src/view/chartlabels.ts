import type uPlot from 'uplot';
import type { CurveLine } from '../generated/report';
import { valueColumn } from './chartdata';
import type { IExtremes } from './chartmarks';
import type { IChart } from './chartspec';
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
  const last = spec.colors
    ? lines.map(line => `${line.name} ${line.last}`).join(', ')
    : spec.last;
  const label = spec.axis
    ? trans.__('%1: %2', spec.title, last)
    : trans.__('%1: %2 after %3 steps', spec.title, last, lines[0]?.steps ?? 0);
  const found = extremes.flatMap((marked, line) => {
    if (!marked) {
      return [];
    }
    const text = trans.__(
      'lowest %1 at %2, highest %3 at %4',
      valueText(content, line, marked.lowest),
      positionText(content, marked.lowest),
      valueText(content, line, marked.highest),
      positionText(content, marked.highest)
    );
    return [lines.length > 1 ? trans.__('%1: %2', lines[line].name, text) : text];
  });
  return {
    label: [label, spec.note, ...found].filter(Boolean).join('; '),
    tooltip: [spec.title, ...found].join('\n')
  };
}

/** The text beside the title: the last value, or what is at the cursor. */
export function headText(content: IChartContent, at: number | null): string {
  const { lines, spec, trans } = content;
  if (spec.colors) {
    return at === null ? '' : positionText(content, at);
  }
  if (at === null) {
    return spec.last;
  }
  const values = lines.map(({ name }, line) => {
    const value = valueText(content, line, at);
    const prefix = line ? `${name} ` : ''; // the title of the chart names the first
    return value && withMark(content, prefix + value, line, at);
  });
  const shown = values.filter(Boolean).join(' · ') || '–';
  return trans.__('%1 at %2', shown, positionText(content, at));
}

/** Each line's last value, or its value nearest to the cursor, for the legend. */
export function legendTexts(content: IChartContent, at: number | null): string[] {
  const { data, lines, spec } = content;
  return lines.map(({ last }, line) => {
    if (at === null) {
      return last;
    }
    const value = nearest(data[valueColumn(line)], data[0], at);
    return value === null ? '–' : withMark(content, formatIn(spec.unit, value), line, at);
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

/** Say of a value whether it is the lowest or the highest. */
function withMark(
  { extremes, trans }: IChartContent,
  value: string,
  line: number,
  at: number
): string {
  const found = extremes[line];
  if (found?.lowest === at) {
    return trans.__('%1 (lowest)', value);
  }
  return found?.highest === at ? trans.__('%1 (highest)', value) : value;
}
