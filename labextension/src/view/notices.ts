import { Kept, make, write } from './dom';
import type { IContext, IPart } from './part';

/** What people must know, above all where numbers differ from one device. */
export function notices({ trans, read }: IContext): IPart {
  const node = make('ul', 'notices', { 'aria-label': trans.__('Notices') });
  const items = new Kept<string>(
    node,
    (_, index) => String(index),
    () => {
      const item = make('li', 'notice');
      return { node: item, update: text => write(item, text) };
    }
  );
  const update = () => {
    items.update(read('notices'));
    node.hidden = !read('notices').length;
  };
  return { node, shows: ['notices'], update };
}
