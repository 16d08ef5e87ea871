import type { CurveLine } from '../generated/report';

/** Metrics that are drawn in one chart. */
export interface IMetricGroup {
  /** The name that they share. */
  readonly name: string;
  readonly lines: readonly CurveLine[];
}

/** What names of metrics of training and evaluation begin with, as in `val/loss`, `eval_loss`. */
const PREFIX = /^(?:train|training|val|valid|validation|eval|test)[/_.](.+)$/;

/**
 * Put metrics of the same quantity together: `loss` and `eval_loss`, `train/acc` and `val/acc`.
 * A metric that is the only one of its quantity keeps its name.
 */
export function groupMetrics(lines: readonly CurveLine[]): IMetricGroup[] {
  const groups = new Map<string, CurveLine[]>();
  for (const line of lines) {
    const quantity = PREFIX.exec(line.name)?.[1] ?? line.name;
    groups.set(quantity, [...(groups.get(quantity) ?? []), line]);
  }
  return [...groups].map(([name, lines]) => ({
    name: lines.length > 1 ? name : lines[0].name,
    lines
  }));
}
