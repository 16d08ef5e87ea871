// What a rank would hold, as a bar: kinds of memory side by side up to what is certain, then
// hatched up to what may be, against what is free.
import { make } from '../view/dom';
import type { ITranslate } from '../view';
import type { Estimate } from './source';
import { formatBytes, formatByteRange } from './format';

/** Draw one strategy; `full` bytes fill the bar, of which `free` are there. */
export function memoryBar(
  row: Estimate,
  full: number,
  free: number | null,
  trans: ITranslate
): HTMLElement {
  const certain = row.parts.map(part => {
    const segment = make('span', `picker-segment nbmgpu-kind-${part.kind}`);
    segment.style.width = percent(part.low, full);
    segment.title = `${part.kind}: ${formatByteRange(part.low, part.high)}`;
    return segment;
  });
  const perhaps = make('span', 'picker-segment nbmgpu-picker-perhaps');
  perhaps.style.width = percent(row.high - row.low, full);
  perhaps.title = trans.__('perhaps up to %1', formatBytes(row.high));
  const track = make('span', 'picker-track', {}, ...certain, perhaps);
  const bar = make('span', 'picker-bar', { 'aria-hidden': 'true' }, track);
  if (free !== null && free < full) {
    const edge = make('span', 'picker-edge', {
      title: trans.__('%1 are free', formatBytes(free))
    });
    edge.style.left = percent(free, full);
    bar.append(edge);
  }
  return bar;
}

function percent(size: number, full: number): string {
  return `${full > 0 ? Math.min(100, (100 * size) / full).toFixed(2) : 0}%`;
}
