// The memory of a rank as a bar: the lower bound by kind of memory, hatched up to the upper bound,
// relative to the free memory.
import { make } from '../view/dom';
import type { ITranslate } from '../view';
import type { Estimate } from './source';
import { formatBytes } from '../view/format';
import { formatByteRange } from './format';

/** Draw one strategy; `full` bytes fill the bar, `free` is the free memory. */
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
  perhaps.title = trans.__('up to %1', formatBytes(row.high));
  const track = make('span', 'picker-track', {}, ...certain, perhaps);
  const bar = make('span', 'picker-bar', { 'aria-hidden': 'true' }, track);
  if (free !== null && free < full) {
    const edge = make('span', 'picker-edge', {
      title: trans.__('%1 free', formatBytes(free))
    });
    edge.style.left = percent(free, full);
    bar.append(edge);
  }
  return bar;
}

function percent(size: number, full: number): string {
  return `${full > 0 ? Math.min(100, (100 * size) / full).toFixed(2) : 0}%`;
}
