import { KeyedList, make, withCode } from './dom';
import type { ISection, ISectionContext, ISectionView } from './section';

/** The notices of the run, such as where results differ from one device. */
export const notices: ISection = { shows: ['notices'], create };

function create({ trans, read }: ISectionContext): ISectionView {
  const node = make('ul', 'notices', { 'aria-label': trans.__('Notices') });
  const items = new KeyedList<string>(
    node,
    (_, index) => String(index),
    () => {
      const item = make('li', 'notice');
      let shown = '';
      const show = (text: string) => {
        if (text !== shown) {
          shown = text; // else selections and live regions are undisturbed
          item.replaceChildren(...withCode(text));
        }
      };
      return { node: item, update: show };
    }
  );
  const update = () => {
    items.update(read('notices'));
    node.hidden = !read('notices').length;
  };
  return { node, update };
}
