import type { RankRow } from '../generated/report';
import { button, uniqueId, KeyedList, make, setAttribute, addArrowKeyNavigation, setText } from './dom';
import { LogList } from './loglist';
import type { ISectionContext, ISection } from './section';
import { errorText } from './errors';

const ALL = -1;
const CLOSED = -2;

/** Ranks up to which their tabs say "rank". */
const FEW = 8;

/** Milliseconds between the last key of a search and the search. */
const PAUSE = 200;

/** What the ranks have written: a tab for each and one for all, search, follow, download. */
export function logs(context: ISectionContext): ISection & { open(rank: number): void } {
  const { source, trans, memory, read } = context;
  const id = uniqueId();
  const list = new LogList(source, trans, {
    changed: () => told(),
    picked: line => {
      search.value = '';
      show(line.index);
    }
  });
  let chosen = Number(memory.get('log rank') ?? CLOSED);

  const bar = make('div', 'tabs', { role: 'tablist', 'aria-label': trans.__('Logs') });
  addArrowKeyNavigation(bar, '[role=tab]', tab => choose(Number(tab.dataset.rank)));
  const tabs = new KeyedList<{ rank: number; tone: string; label: string; name: string }>(
    bar,
    tab => String(tab.rank),
    ({ rank }) => {
      const node = button('tab', '', () => choose(rank === chosen ? CLOSED : rank));
      node.setAttribute('role', 'tab');
      node.setAttribute('aria-controls', id);
      node.dataset.rank = String(rank);
      const update = (tab: { tone: string; label: string; name: string }) => {
        setText(node, tab.label);
        setAttribute(node, 'aria-label', tab.name);
        setAttribute(node, 'data-tone', tab.tone);
        setAttribute(node, 'aria-selected', String(rank === chosen));
        node.tabIndex = rank === chosen || (chosen === CLOSED && rank === ALL) ? 0 : -1;
      };
      return { node, update };
    }
  );

  const search = make('input', 'search', {
    type: 'search',
    placeholder: trans.__('Search'),
    'aria-label': trans.__('Search the log')
  });
  let timer = 0;
  search.addEventListener('input', () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => show(), PAUSE);
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
  const close = button('toggle', trans.__('Close'), () => choose(CLOSED));
  const tools = make('div', 'tools', {}, search, count, follow, download, close);
  const panel = make('div', 'log-panel', { id, role: 'tabpanel' }, tools, list.node);
  const node = make(
    'section',
    'logs',
    { 'aria-label': trans.__('Logs') },
    make('div', 'tabs', {}, make('span', 'tabs-title', {}, trans.__('Logs')), bar),
    panel
  );

  const told = () => {
    const total = list.total.toLocaleString('en-US');
    setText(
      count,
      search.value ? trans.__('%1 found', total) : trans.__('%1 lines', total)
    );
    setAttribute(follow, 'aria-pressed', String(list.follow));
  };
  const named = (rank: number) =>
    rank === ALL ? trans.__('Log of all ranks') : trans.__('Log of rank %1', rank);

  const lines = () => {
    const sizes = read('logs').map(({ lines }) => lines);
    return chosen === ALL ? sizes.reduce((sum, n) => sum + n, 0) : (sizes[chosen] ?? 0);
  };

  const show = (goal?: number) => {
    list.show({ rank: chosen, search: search.value }, lines(), goal);
    setAttribute(list.node, 'aria-label', named(chosen));
    told();
  };

  const choose = (rank: number) => {
    if (rank !== chosen) {
      chosen = rank;
      memory.set('log rank', rank);
      update();
      if (chosen !== CLOSED) {
        show();
      }
    }
  };

  const save = async () => {
    const url = URL.createObjectURL(
      new Blob([await list.whole(chosen)], { type: 'text/plain' })
    );
    const link = make('a', '', { href: url, download: nameOf(chosen) });
    link.click();
    URL.revokeObjectURL(url);
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
    const rows = read('ranks');
    tabs.update([
      { rank: ALL, tone: '', label: trans.__('all'), name: named(ALL) },
      ...rows.map(row => ({ ...tabOf(row), name: named(row.rank) }))
    ]);
    panel.hidden = chosen === CLOSED;
    const url = chosen === CLOSED ? null : (source.downloadUrl?.(chosen) ?? null);
    if (url) {
      setAttribute(download, 'href', url);
      setAttribute(download, 'download', nameOf(chosen));
    } else {
      download.removeAttribute('href');
    }
    grow();
  };
  const tabOf = (row: RankRow) => ({
    rank: row.rank,
    tone: row.tone,
    label: read('ranks').length <= FEW ? trans.__('rank %1', row.rank) : String(row.rank)
  });

  let size = '';
  const grow = () => {
    const now = JSON.stringify(read('logs'));
    if (now !== size && chosen !== CLOSED) {
      size = now;
      list.grown(lines());
    }
  };
  if (chosen !== CLOSED) {
    show();
  }

  const dispose = () => {
    clearTimeout(timer);
    list.dispose();
  };
  return { node, shows: ['ranks', 'logs', 'about'], update, dispose, open: choose };
}
