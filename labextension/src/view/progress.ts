import type { Bar } from '../generated/report';
import { KeyedList, make, setAttribute, setText, type IItemView } from './dom';
import type { ISection, ISectionContext, ISectionView } from './section';
import type { ITranslate } from './source';
import { barText } from './words';

/** The progress bars of the training loader and of tqdm. */
export const progress: ISection = { shows: ['progress', 'status'], create };

function create({ trans, read }: ISectionContext): ISectionView {
  const node = make('div', 'bars');
  const bars = new KeyedList<Bar>(
    node,
    bar => bar.key,
    () => progressBar(trans)
  );
  const update = () => {
    bars.update(read('progress'));
    node.toggleAttribute('data-over', read('status').over);
  };
  return { node, update };
}

function progressBar(trans: ITranslate): IItemView<Bar> {
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
    const text = barText(bar.label, trans);
    setText(label, text);
    setText(count, bar.count);
    setAttribute(track, 'aria-label', text || trans.__('progress'));
    setAttribute(track, 'aria-valuetext', bar.count);
    setAttribute(track, 'aria-valuemax', '100');
    track.toggleAttribute('data-unknown', bar.fraction < 0);
    if (bar.fraction < 0) {
      track.removeAttribute('aria-valuenow');
    } else {
      setAttribute(track, 'aria-valuenow', String(Math.round(100 * bar.fraction)));
    }
    fill.style.width = bar.fraction < 0 ? '' : `${100 * bar.fraction}%`;
  };
  return { node, update };
}
