import type { IChart } from './chartspec';
import { setAttribute } from './dom';

/** How a line differs from others. */
export interface ILineStyle {
  readonly color: string;
  /** Lengths of dashes and gaps in pixels, as in `stroke-dasharray`; empty for a solid line. */
  readonly dash: string;
}

/** The lengths of dashes and gaps. */
export function dashLengths({ dash }: ILineStyle): number[] {
  return dash.split(' ').filter(Boolean).map(Number);
}

/** Let the style sheet draw a sample of a line on `node`. */
export function setSample(node: HTMLElement, style: ILineStyle): void {
  node.style.setProperty('--nbmgpu-line', style.color);
  const lengths = dashLengths(style);
  if (!lengths.length) {
    return;
  }
  setAttribute(node, 'data-dash', style.dash);
  let at = 0;
  const stops = lengths.map(
    (length, index) =>
      `${index % 2 ? 'transparent' : style.color} ${at}px ${(at += length)}px`
  );
  node.style.setProperty(
    '--nbmgpu-dashes',
    `repeating-linear-gradient(90deg, ${stops.join(', ')})`
  );
}

/** The opacity of a line behind its smoothed one. */
export const SMOOTHED_OPACITY = 0.35;

/** The width of a line in pixels; its smoothed one is half a pixel wider. */
export function lineWidth({ highlighted }: IChart, line: number): number {
  return line === 0 || line === highlighted ? 1.5 : 1;
}
