import type { ProfileRow, ProfileTable } from '../generated/runs';
import { button, make, setText } from './dom';
import { errorText } from './errors';
import { foldable, rememberFolding, scrollRegion, shareCell } from './foldable';
import { formatBytes, formatSeconds, formatShare } from './format';
import type { ISection, ISectionContext, ISectionView } from './section';
import { downloadTrace, hasTraces } from './tracedownload';

/** Where the choice is stored whether the table is unfolded. */
const IS_OPEN = 'profile unfolded';

/** The page that opens traces; it uploads nothing. */
const VIEWER = 'https://ui.perfetto.dev';

/** A table of what each rank spent its profiled steps on, with downloads of the traces. */
export const profile: ISection = { shows: ['profile', 'about'], create };

function create(context: ISectionContext): ISectionView {
  const { trans, read, memory } = context;
  const title = trans.__('Profile');
  const region = scrollRegion('profile-region', title);
  const link = make(
    'a',
    'profile-link',
    { href: VIEWER, target: '_blank', rel: 'noopener noreferrer' },
    'ui.perfetto.dev'
  );
  const hint = make(
    'p',
    'profile-caption',
    {},
    trans.__('Communication beside computing counts as computing, and as hidden.'),
    ' ',
    trans.__('Open traces at:'),
    ' ',
    link
  );
  const message = make('div', 'more', { role: 'status' });
  message.hidden = true;
  const caption = make('p', 'profile-caption');
  const node = foldable(title, caption, region, hint, message);
  rememberFolding(node, memory, IS_OPEN, true);
  const say = (text: string) => {
    setText(message, text);
    message.hidden = !text;
  };
  let shown: ProfileTable | undefined;
  const update = () => {
    const payload = read('profile');
    node.hidden = !payload.rows.length;
    if (payload !== shown) {
      shown = payload;
      const steps = [...new Set(payload.rows.map(row => row.steps))].join(', ');
      setText(caption, trans.__('Time of the average step: steps %1', steps));
      region.replaceChildren(table(payload, context, say));
    }
  };
  return { node, update };
}

function table(
  { rows }: ProfileTable,
  context: ISectionContext,
  say: (text: string) => void
): HTMLElement {
  const { trans } = context;
  const heads = [
    trans.__('Rank'),
    trans.__('Step'),
    trans.__('Compute'),
    trans.__('Communication'),
    trans.__('Data'),
    trans.__('Host'),
    trans.__('Hidden communication'),
    trans.__('Trace')
  ].map(text => make('th', '', { scope: 'col' }, text));
  return make(
    'table',
    'profile',
    { 'aria-label': trans.__('Time of the average profiled step of each rank') },
    make('thead', '', {}, make('tr', '', {}, ...heads)),
    make('tbody', '', {}, ...rows.map(row => tableRow(row, context, say)))
  );
}

function tableRow(
  row: ProfileRow,
  context: ISectionContext,
  say: (text: string) => void
): HTMLElement {
  const parts = [row.compute, row.communication, row.data, row.host];
  const shares = parts.map(seconds => {
    const share = row.step_time ? seconds / row.step_time : 0;
    return shareCell(share, formatSeconds(seconds), formatShare(share));
  });
  return make(
    'tr',
    '',
    {},
    make('th', '', { scope: 'row' }, String(row.rank)),
    make('td', '', {}, formatSeconds(row.step_time)),
    ...shares,
    make('td', '', {}, formatSeconds(row.hidden)),
    make('td', '', {}, traceButton(row, context, say))
  );
}

/** A button that downloads the trace of a rank, or the size of it where none can. */
function traceButton(
  { rank, nbytes, trace }: ProfileRow,
  { source, trans, read }: ISectionContext,
  say: (text: string) => void
): HTMLElement | string {
  const size = formatBytes(nbytes);
  if (!hasTraces(source)) {
    return make('span', '', { title: trace }, size);
  }
  let isBusy = false;
  const download = async () => {
    if (isBusy) {
      return;
    }
    isBusy = true;
    say('');
    try {
      await downloadTrace(source, rank, read('about').id, share =>
        setText(node, share < 1 ? formatShare(share) : size)
      );
    } catch (reason) {
      say(trans.__('The trace cannot be saved: %1', errorText(reason)));
    }
    setText(node, size);
    isBusy = false;
  };
  const node = button('toggle', size, () => void download());
  node.title = trace;
  node.setAttribute(
    'aria-label',
    trans.__('Download the trace of rank %1, %2', rank, size)
  );
  return node;
}
