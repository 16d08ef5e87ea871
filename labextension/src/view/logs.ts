import {
  button,
  uniqueId,
  KeyedList,
  make,
  setAttribute,
  addArrowKeyNavigation,
  setText
} from './dom';
import { LogList } from './loglist';
import type { ISection, ISectionContext, ISectionView } from './section';
import { downloadText } from './download';
import { errorText } from './errors';

const ALL = -1;
const CLOSED = -2;

/** Maximum number of ranks whose tabs have the prefix "rank". */
const MAX_LONG_LABELS = 8;

/** Number of ranks above which only some have a tab, and a field opens the others. */
const MAX_TABS = 32;

/** Milliseconds between the last input and the search. */
const DEBOUNCE = 200;

/** The logs: a tab for each rank and one for all, with search, follow and download. */
export const logs: ISection = { shows: ['ranks', 'logs', 'about'], create };

function create(context: ISectionContext): ISectionView {
  const { source, trans, memory, read, logRequests } = context;
  const id = uniqueId();
  const list = new LogList(source, trans, {
    changed: () => updateTools(),
    picked: line => {
      search.value = '';
      show(line.index);
    }
  });
  let selected = Number(memory.get('log rank') ?? CLOSED);

  const bar = make('div', 'tabs', { role: 'tablist', 'aria-label': trans.__('Logs') });
  addArrowKeyNavigation(bar, '[role=tab]', tab => select(Number(tab.dataset.rank)));
  const tabs = new KeyedList<{ rank: number; tone: string; label: string; name: string }>(
    bar,
    tab => String(tab.rank),
    ({ rank }) => {
      const node = button('tab', '', () => select(rank === selected ? CLOSED : rank));
      node.setAttribute('role', 'tab');
      node.setAttribute('aria-controls', id);
      node.dataset.rank = String(rank);
      const update = (tab: { tone: string; label: string; name: string }) => {
        setText(node, tab.label);
        setAttribute(node, 'aria-label', tab.name);
        setAttribute(node, 'data-tone', tab.tone);
        setAttribute(node, 'aria-selected', String(rank === selected));
        node.tabIndex =
          rank === selected || (selected === CLOSED && rank === ALL) ? 0 : -1;
      };
      return { node, update };
    }
  );

  const number = make('input', 'log-rank', {
    type: 'number',
    min: '0',
    placeholder: trans.__('rank'),
    'aria-label': trans.__('Rank whose log is shown')
  });
  const openNumber = () => {
    if (number.value && number.checkValidity()) {
      select(number.valueAsNumber);
    }
  };
  number.addEventListener('change', openNumber);
  number.addEventListener('keydown', event => {
    if (event.key === 'Enter') {
      openNumber(); // outside of forms, not every browser emits a change then
    }
  });
  const search = make('input', 'search', {
    type: 'search',
    placeholder: trans.__('Search'),
    'aria-label': trans.__('Search the log')
  });
  let timer = 0;
  search.addEventListener('input', () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => show(), DEBOUNCE);
  });
  const count = make('span', 'log-count');
  const follow = button('toggle', trans.__('Follow'), () => {
    list.follow = !list.follow;
  });
  const download = make(
    'a',
    'button',
    { role: 'button', tabindex: '0' },
    trans.__('Download')
  );
  const close = button('toggle', trans.__('Close'), () => select(CLOSED));
  const tools = make('div', 'tools', {}, search, count, follow, download, close);
  const panel = make('div', 'log-panel', { id, role: 'tabpanel' }, tools, list.node);
  const node = make(
    'section',
    'logs',
    { 'aria-label': trans.__('Logs') },
    make(
      'div',
      'tabs',
      {},
      make('span', 'tabs-title', {}, trans.__('Logs')),
      bar,
      number
    ),
    panel
  );

  const updateTools = () => {
    const total = list.total.toLocaleString('en-US');
    setText(
      count,
      search.value ? trans.__('%1 found', total) : trans.__('%1 lines', total)
    );
    setAttribute(follow, 'aria-pressed', String(list.follow));
  };
  const labelOf = (rank: number) =>
    rank === ALL ? trans.__('Log of all ranks') : trans.__('Log of rank %1', rank);

  const lines = () => {
    const sizes = read('logs').map(({ lines }) => lines);
    return selected === ALL
      ? sizes.reduce((sum, n) => sum + n, 0)
      : (sizes[selected] ?? 0);
  };

  const show = (target?: number) => {
    list.show({ rank: selected, search: search.value }, lines(), target);
    setAttribute(list.node, 'aria-label', labelOf(selected));
    updateTools();
  };

  const select = (rank: number) => {
    if (rank !== selected) {
      selected = rank;
      memory.set('log rank', rank);
      update();
      if (selected !== CLOSED) {
        show();
      }
    }
  };

  const save = async () => {
    downloadText(await list.allLines(selected), nameOf(selected));
  };
  const nameOf = (rank: number) =>
    `${read('about').id || 'run'}-${rank === ALL ? 'all' : `rank-${rank}`}.log`;
  download.addEventListener('click', event => {
    if (!download.hasAttribute('href')) {
      event.preventDefault();
      save().catch(reason =>
        setText(count, trans.__('The log cannot be saved: %1', errorText(reason)))
      );
    }
  });
  download.addEventListener('keydown', event => {
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      download.click();
    }
  });

  const update = () => {
    tabs.update([
      { rank: ALL, tone: '', label: trans.__('all'), name: labelOf(ALL) },
      ...shownRanks().map(rank => ({ ...tabOf(rank), name: labelOf(rank) }))
    ]);
    const count = read('logs').length;
    number.hidden = count <= MAX_TABS;
    setAttribute(number, 'max', String(count - 1));
    panel.hidden = selected === CLOSED;
    const url = selected === CLOSED ? null : (source.downloadUrl?.(selected) ?? null);
    if (url) {
      setAttribute(download, 'href', url);
      setAttribute(download, 'download', nameOf(selected));
    } else {
      download.removeAttribute('href');
    }
    grow();
  };
  /** All ranks, or the first and the selected one of many. */
  const shownRanks = () => {
    const count = read('logs').length;
    if (count > MAX_TABS) {
      return selected > 0 ? [0, selected] : [0];
    }
    return Array.from({ length: count }, (_, rank) => rank);
  };
  // There are no rows of ranks in a run on several machines.
  const tabOf = (rank: number) => ({
    rank,
    tone: read('ranks')[rank]?.tone ?? '',
    label:
      shownRanks().length <= MAX_LONG_LABELS ? trans.__('rank %1', rank) : String(rank)
  });

  let size = '';
  const grow = () => {
    const now = JSON.stringify(read('logs'));
    if (now !== size && selected !== CLOSED) {
      size = now;
      list.onGrowth(lines());
    }
  };
  if (selected !== CLOSED) {
    show();
  }

  const endRequests = logRequests.listen(select);
  const dispose = () => {
    endRequests();
    clearTimeout(timer);
    list.dispose();
  };
  return { node, update, dispose };
}
