import { button, make, noteNode, setAttribute, setNote, setText } from './dom';
import type { ISection, ISectionContext, ISectionView } from './section';
import { batchText, headlineText, remainingText, stateText, verifiedText } from './words';

/** State, strategy and devices, times, the Stop button, batch, folder and note. */
export const header: ISection = { shows: ['status', 'about'], create };

function create({ source, trans, read }: ISectionContext): ISectionView {
  const dot = make('span', 'dot', { 'aria-hidden': 'true' });
  const state = make('span', 'state', { role: 'status', 'aria-live': 'polite' });
  const title = make('span', 'title');
  const elapsed = make('span', 'elapsed', { 'aria-label': trans.__('Elapsed time') });
  const remaining = make('span', 'remaining');
  const stop = button('stop', '', event => {
    // The second click of a double click must not become a forced stop.
    if (event.detail < 2) {
      source.stop(read('status').stopping !== '');
    }
  });
  const batch = make('span', 'batch');
  const verified = make('span', 'verified');
  const note = noteNode(trans.__('Note'));
  const folder = button('folder', '', () => void openOrCopy());

  let timer = 0;
  const openOrCopy = async () => {
    if (source.openFolder) {
      source.openFolder();
      return;
    }
    const done = await copy(read('about').folder);
    setText(folder, done ? trans.__('Path copied') : read('about').folder);
    clearTimeout(timer);
    timer = window.setTimeout(() => setText(folder, trans.__('Run folder')), 2500);
  };

  const update = () => {
    const status = read('status');
    const about = read('about');
    const stopping = status.stopping !== '';
    setAttribute(dot, 'data-tone', status.tone);
    setAttribute(state, 'data-tone', status.tone);
    setText(state, stateText(status.label, trans));
    setText(title, headlineText(about.headline, trans));
    setText(elapsed, status.elapsed);
    setText(remaining, remainingText(status.remaining, trans));
    setText(batch, batchText(about.batch, trans));
    setText(verified, verifiedText(about.verified, trans));
    verified.hidden = !about.verified;
    setNote(note, about.note);
    if (!folder.textContent || folder.title !== about.folder) {
      setText(folder, trans.__('Run folder'));
      folder.title = about.folder;
    }
    folder.hidden = !about.folder;
    setText(stop, stopping ? trans.__('Force stop') : trans.__('Stop'));
    stop.title = stopping
      ? trans.__('Kill the ranks: no results are written back')
      : trans.__('Interrupt the ranks: results so far are written back');
    stop.hidden = status.over;
    stop.disabled = status.stopping === 'forced';
    setAttribute(stop, 'data-forced', String(stopping));
  };
  const node = make(
    'div',
    'header',
    {},
    make('div', 'header-line', {}, dot, state, title, elapsed, remaining, stop),
    make('div', 'header-line', { 'data-small': '' }, batch, verified, folder),
    note
  );
  const dispose = () => clearTimeout(timer);
  return { node, update, dispose };
}

/** Copy `text` to the clipboard; false if the browser does not allow it. */
async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
