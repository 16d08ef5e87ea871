import type { Bar } from '../generated/report';
import { Kept, make, mark, write, type IShows } from './dom';
import type { IContext, IPart } from './part';

/** The bar of the training loader, and those of tqdm. */
export function progress({ trans, read }: IContext): IPart {
  const node = make('div', 'bars');
  const bars = new Kept<Bar>(
    node,
    bar => bar.key,
    () => progressBar(trans.__('progress'))
  );
  const update = () => {
    bars.update(read('progress'));
    node.toggleAttribute('data-over', read('status').over);
  };
  return { node, shows: ['progress', 'status'], update };
}

function progressBar(unnamed: string): IShows<Bar> {
  const label = make('span', 'bar-label');
  const count = make('span', 'bar-count');
  const fill = make('div', 'bar-fill');
  const track = make(
    'div',
    'bar-track',
    { role: 'progressbar', 'aria-valuemin': '0' },
    fill
  );
  const node = make('div', 'bar', {}, label, count, track);
  const update = (bar: Bar) => {
    write(label, bar.label);
    write(count, bar.count);
    mark(track, 'aria-label', bar.label || unnamed);
    mark(track, 'aria-valuetext', bar.count);
    mark(track, 'aria-valuemax', '100');
    track.toggleAttribute('data-unknown', bar.fraction < 0);
    if (bar.fraction < 0) {
      track.removeAttribute('aria-valuenow');
    } else {
      mark(track, 'aria-valuenow', String(Math.round(100 * bar.fraction)));
    }
    fill.style.width = bar.fraction < 0 ? '' : `${100 * bar.fraction}%`;
  };
  return { node, update };
}
