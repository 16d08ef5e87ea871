import { KeyedList, make, setText } from './dom';
import type { ISectionContext, ISection } from './section';

/** The notices of the run, such as where results differ from one device. */
export function notices({ trans, read }: ISectionContext): ISection {
  const node = make('ul', 'notices', { 'aria-label': trans.__('Notices') });
  const items = new KeyedList<string>(
    node,
    (_, index) => String(index),
    () => {
      const item = make('li', 'notice');
      return { node: item, update: text => setText(item, text) };
    }
  );
  const update = () => {
    items.update(read('notices'));
    node.hidden = !read('notices').length;
  };
  return { node, shows: ['notices'], update };
}
