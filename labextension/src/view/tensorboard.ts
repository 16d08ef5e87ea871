import { make, setText } from './dom';
import type { ISection, ISectionContext, ISectionView } from './section';

/** Links to TensorBoard for the folders to which the run logs, or the command that starts it. */
export const tensorboard: ISection = { shows: ['tensorboard'], create };

function create({ source, trans, read }: ISectionContext): ISectionView {
  const node = make('section', 'tensorboard', { 'aria-label': 'TensorBoard' });
  let shown = '';
  /** Addresses by the place of the folder, as far as they are known. */
  let addresses: ReadonlyMap<number, string> = new Map();

  const draw = () => {
    const rows = read('tensorboard').map(({ place, folder, command }) => {
      const address = addresses.get(place);
      if (address === undefined) {
        const code = make('code', '', {}, command);
        return make(
          'div',
          'more',
          {},
          trans.__('TensorBoard, in a terminal:'),
          ' ',
          code
        );
      }
      const link = make(
        'a',
        'tensorboard-link',
        { href: address, target: '_blank', rel: 'noopener', title: command },
        trans.__('Open in TensorBoard')
      );
      const path = make('span', 'more');
      setText(path, folder);
      return make('div', 'tensorboard-row', {}, link, ' ', path);
    });
    node.replaceChildren(...rows);
  };
  const update = () => {
    const folders = read('tensorboard');
    node.hidden = !folders.length;
    const key = folders.map(({ command }) => command).join('\n');
    if (key === shown) {
      return;
    }
    shown = key;
    draw();
    // A server that does not know this run, or has no TensorBoard, offers none.
    source.tensorBoards?.().then(
      found => {
        addresses = found;
        draw();
      },
      () => undefined
    );
  };
  return { node, update };
}
