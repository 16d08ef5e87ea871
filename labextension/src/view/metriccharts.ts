import type { CurveLine, Parts } from '../generated/report';
import type { IChart } from './chartspec';
import { formatSeconds } from './format';
import { groupMetrics } from './metricgroups';
import { unpack } from './points';
import { runStyle } from './runcomparison/runstyle';
import type { ITranslate } from './source';
import { metricText, rankText, sentText } from './words';

/** All charts of a run, in order: metrics, throughput, step time. */
export function metricCharts(
  curves: Parts['curves'],
  throughput: Parts['throughput'],
  trans: ITranslate
): IChart[] {
  const { epochs } = curves;
  const chart = (name: string, lines: readonly CurveLine[]): IChart => ({
    key: name,
    title: name,
    last: lines[0].last,
    finite: lines.every(line => line.finite),
    lines: [...lines],
    unit: 'number',
    highlighted: -1,
    styles: lines.length > 1 ? lines.map((_, index) => runStyle(index)) : undefined,
    epochs
  });
  const all = [
    ...groupMetrics(curves.shown).map(({ name, lines }) => chart(name, lines)),
    ...throughput.rates.map(line => ({
      ...chart(line.name, [line]),
      title: metricText(line.name, trans)
    }))
  ];
  if (throughput.step_times.length) {
    all.push(stepTime(throughput, trans));
  }
  return all;
}

function stepTime(throughput: Parts['throughput'], trans: ITranslate): IChart {
  const lines = throughput.step_times;
  const values = unpack(lines[0].points).y;
  const highlighted = lines.findIndex(line => line.name === `rank ${throughput.slowest}`);
  return {
    key: 'step time',
    title: trans.__('step time'),
    last: throughput.step_time || formatSeconds(values[values.length - 1]),
    note:
      throughput.sent && trans.__('a rank sends %1', sentText(throughput.sent, trans)),
    finite: true,
    lines: lines.map(line => {
      const { y } = unpack(line.points);
      const name = rankText(line.name, trans);
      return { ...line, name, last: formatSeconds(y[y.length - 1]) };
    }),
    unit: 'seconds',
    highlighted
  };
}
