import type { LogLine } from '../generated/report';
import { nodes, withoutColors } from './ansi';
import { make, setText } from './dom';
import { Pages, type ILogFilter } from './pages';
import type { IRunSource, ITranslate } from './source';
import { errorText } from './errors';
import { LINE, heightOf, visibleLines, scrollTo } from './visiblelines';

/** The number of newest lines of all ranks whose order may still change. */
const REORDERED_LINES = 400;

/** Milliseconds after user input during which scrolling is attributed to the user. */
const USER_SCROLL_MS = 1000;

/** The callbacks of the list. */
export interface ILogListener {
  /** The number of lines, or whether the list follows, has changed. */
  changed(): void;
  /** A search result was clicked. */
  picked(line: LogLine): void;
}

/**
 * A virtual list of log lines: only visible lines are in the DOM, and only they are requested.
 * While it follows, it stays scrolled to the end.
 */
export class LogList {
  readonly node = make('div', 'log', { tabindex: '0', role: 'region' });
  total = 0;
  private following = true;
  private pages: Pages | null = null;
  /** The line to scroll to once it is loaded, or -1. */
  private target = -1;
  /** The time of the last user input; layout changes scroll as well. */
  private lastInput = 0;
  /** The text of an empty list, and the error of the last request. */
  private placeholder = '';
  private error = '';
  private empty = make('div', 'log-empty');
  private spacer = make('div', 'log-spacer');
  private lines = make('div', 'log-lines');
  private sizes = new ResizeObserver(() => this.draw());

  constructor(
    private source: IRunSource,
    private trans: ITranslate,
    private listener: ILogListener
  ) {
    this.spacer.append(this.lines);
    this.node.append(this.empty, this.spacer);
    this.node.addEventListener('scroll', () => this.onScroll());
    for (const input of ['wheel', 'touchmove', 'keydown', 'pointerdown']) {
      this.node.addEventListener(input, () => (this.lastInput = Date.now()), {
        passive: true
      });
    }
    this.sizes.observe(this.node);
  }

  /** Show another log: its end, or line `target`. */
  show(filter: ILogFilter, total: number, target = -1): void {
    this.pages?.close();
    this.pages = new Pages(
      filter,
      request => this.source.logs(request),
      found => {
        this.error = '';
        this.setTotal(found);
      },
      reason => this.showError(reason)
    );
    this.target = target;
    this.following = target < 0;
    this.total = 0;
    this.lines.replaceChildren();
    this.error = '';
    this.placeholder = filter.search
      ? '…'
      : this.trans.__('Nothing has been written yet');
    this.onGrowth(total);
  }

  /** The log has grown to `total` lines, before filtering by the search. */
  onGrowth(total: number): void {
    if (!this.pages) {
      return;
    }
    const { rank, search } = this.pages.filter;
    this.pages.invalidateFrom(rank < 0 ? this.total - REORDERED_LINES : this.total - 1);
    if (search) {
      void this.pages.count();
    } else {
      this.setTotal(total);
    }
  }

  get follow(): boolean {
    return this.following;
  }

  set follow(follow: boolean) {
    this.following = follow;
    this.draw();
    this.listener.changed();
  }

  dispose(): void {
    this.sizes.disconnect();
    this.pages?.close();
  }

  /** All lines of a rank, for download. */
  async allLines(rank: number): Promise<string> {
    const texts: string[] = [];
    for (;;) {
      const request = { rank, first: texts.length, count: 2000, search: '' };
      const page = await this.source.logs(request);
      texts.push(...page.lines.map(line => withoutColors(line.text)));
      if (!page.lines.length || texts.length >= page.total) {
        return texts.map(text => `${text}\n`).join('');
      }
    }
  }

  private setTotal(total: number): void {
    if (total !== this.total) {
      this.total = total;
      this.spacer.style.height = `${heightOf(total)}px`;
      this.listener.changed();
    } else if (!total && this.pages?.filter.search) {
      this.placeholder = this.trans.__('No line contains this');
    }
    if (this.target >= 0 && this.target < total && this.node.clientHeight) {
      const before = Math.max(this.target - 3, 0);
      this.target = -1;
      this.node.scrollTop = scrollTo(before, this.node.clientHeight, total);
    }
    this.draw();
  }

  private showError(reason: unknown): void {
    this.error = this.trans.__('The log cannot be read: %1', errorText(reason));
    this.draw();
  }

  private onScroll(): void {
    const { scrollTop, clientHeight, scrollHeight } = this.node;
    const atEnd = scrollTop + clientHeight >= scrollHeight - LINE;
    const byUser = Date.now() - this.lastInput < USER_SCROLL_MS;
    if (
      clientHeight &&
      this.target < 0 &&
      atEnd !== this.following &&
      (atEnd || byUser)
    ) {
      this.following = atEnd;
      this.listener.changed();
    }
    if (byUser) {
      this.lastInput = Date.now(); // the scroll bar is still dragged
    }
    this.draw();
  }

  /** Render the visible lines, and request those that are missing. */
  private draw(): void {
    setText(this.empty, this.error || this.placeholder);
    this.empty.hidden = this.total > 0 && !this.error;
    if (!this.node.clientHeight || !this.pages) {
      return; // not attached
    }
    if (this.following) {
      this.node.scrollTop = this.node.scrollHeight;
    }
    const { clientHeight, scrollTop } = this.node;
    const { first, count, top } = visibleLines(scrollTop, clientHeight, this.total);
    this.lines.style.transform = `translateY(${top}px)`;
    const rows = Array.from({ length: count }, (_, place) => this.row(first + place));
    this.lines.replaceChildren(...rows);
    this.pages.load(first, count);
  }

  private row(index: number): HTMLElement {
    const row = make('div', 'line');
    const line = this.pages?.line(index);
    if (!line || !this.pages) {
      return row;
    }
    const { rank, search } = this.pages.filter;
    const where =
      rank < 0 ? `${line.rank} │ ${line.number + 1}` : String(line.number + 1);
    row.append(make('span', 'line-number', { 'aria-hidden': 'true' }, where));
    if (line.stderr) {
      row.dataset.stderr = '';
      row.append(make('span', 'unseen', {}, this.trans.__('stderr: ')));
    }
    row.append(make('span', 'line-text', {}, ...nodes(line.text, search)));
    if (search) {
      row.title = this.trans.__('Show this line in context');
      row.addEventListener('click', () => this.listener.picked(line));
    }
    return row;
  }
}
