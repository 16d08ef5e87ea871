import type { IChart } from './chartspec';

/** The opacity of a line behind its smoothed one. */
export const SMOOTHED_OPACITY = 0.35;

/** The width of a line in pixels; its smoothed one is half a pixel wider. */
export function lineWidth({ highlighted }: IChart, line: number): number {
  return line === 0 || line === highlighted ? 1.5 : 1;
}
