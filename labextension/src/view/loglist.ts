import type { LogLine } from '../generated/report';
import { nodes, uncoloured } from './ansi';
import { make, setText } from './dom';
import { Pages, type ILogChoice } from './pages';
import type { IRunSource, ITranslate } from './source';
import { errorText } from './errors';
import { LINE, heightOf, inSight, scrollTo } from './visiblelines';

/** Lines of all ranks that may still change places: the newest. */
const REORDERED_LINES = 400;

/** Milliseconds after a key, a wheel or a press in which scrolling is somebody's wish. */
const USER_SCROLL_MS = 1000;

/** What the list tells those around it. */
export interface ILogListener {
  /** The number of lines, or whether the list follows, has changed. */
  changed(): void;
  /** A line was chosen among those that were found. */
  picked(line: LogLine): void;
}

/**
 * The lines of a log.  However long it is, only those in sight are in the page, and only what
 * is in sight is asked for.  While it follows, it stays at the end as that moves on.
 */
export class LogList {
  readonly node = make('div', 'log', { tabindex: '0', role: 'region' });
  total = 0;
  private following = true;
  private pages: Pages | null = null;
  /** The line to show as soon as there are so many. */
  private goal = -1;
  /** When somebody has last scrolled by hand; a page that is laid out anew scrolls as well. */
  private lastInput = 0;
  /** What is said where there are no lines, and why they cannot be read. */
  private nothing = '';
  private trouble = '';
  private empty = make('div', 'log-empty');
  private room = make('div', 'log-room');
  private sheet = make('div', 'log-sheet');
  private sizes = new ResizeObserver(() => this.draw());

  constructor(
    private source: IRunSource,
    private trans: ITranslate,
    private listener: ILogListener
  ) {
    this.room.append(this.sheet);
    this.node.append(this.empty, this.room);
    this.node.addEventListener('scroll', () => this.onScroll());
    for (const input of ['wheel', 'touchmove', 'keydown', 'pointerdown']) {
      this.node.addEventListener(input, () => (this.lastInput = Date.now()), {
        passive: true
      });
    }
    this.sizes.observe(this.node);
  }

  /** Show other lines: from the end on, or from line `goal`. */
  show(choice: ILogChoice, total: number, goal = -1): void {
    this.pages?.close();
    this.pages = new Pages(
      choice,
      request => this.source.logs(request),
      found => {
        this.trouble = '';
        this.setTotal(found);
      },
      error => this.complain(error)
    );
    this.goal = goal;
    this.following = goal < 0;
    this.total = 0;
    this.sheet.replaceChildren();
    this.trouble = '';
    this.nothing = choice.search ? '…' : this.trans.__('Nothing has been written yet');
    this.grown(total);
  }

  /** The logs have grown, to `total` lines before any search. */
  grown(total: number): void {
    if (!this.pages) {
      return;
    }
    const { rank, search } = this.pages.choice;
    this.pages.grown(rank < 0 ? this.total - REORDERED_LINES : this.total - 1);
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

  /** Every line of a rank, for download. */
  async whole(rank: number): Promise<string> {
    const texts: string[] = [];
    for (;;) {
      const request = { rank, first: texts.length, count: 2000, search: '' };
      const page = await this.source.logs(request);
      texts.push(...page.lines.map(line => uncoloured(line.text)));
      if (!page.lines.length || texts.length >= page.total) {
        return texts.map(text => `${text}\n`).join('');
      }
    }
  }

  private setTotal(total: number): void {
    if (total !== this.total) {
      this.total = total;
      this.room.style.height = `${heightOf(total)}px`;
      this.listener.changed();
    } else if (!total && this.pages?.choice.search) {
      this.nothing = this.trans.__('No line contains this');
    }
    if (this.goal >= 0 && this.goal < total && this.node.clientHeight) {
      const before = Math.max(this.goal - 3, 0);
      this.goal = -1;
      this.node.scrollTop = scrollTo(before, this.node.clientHeight, total);
    }
    this.draw();
  }

  private complain(error: unknown): void {
    this.trouble = this.trans.__('The log cannot be read: %1', errorText(error));
    this.draw();
  }

  private onScroll(): void {
    const { scrollTop, clientHeight, scrollHeight } = this.node;
    const atEnd = scrollTop + clientHeight >= scrollHeight - LINE;
    const byHand = Date.now() - this.lastInput < USER_SCROLL_MS;
    if (clientHeight && this.goal < 0 && atEnd !== this.following && (atEnd || byHand)) {
      this.following = atEnd;
      this.listener.changed();
    }
    if (byHand) {
      this.lastInput = Date.now(); // dragging the scroll bar goes on
    }
    this.draw();
  }

  /** Put the lines in sight into the page, and ask for those that are not here yet. */
  private draw(): void {
    setText(this.empty, this.trouble || this.nothing);
    this.empty.hidden = this.total > 0 && !this.trouble;
    if (!this.node.clientHeight || !this.pages) {
      return; // not in the page
    }
    if (this.following) {
      this.node.scrollTop = this.node.scrollHeight;
    }
    const { clientHeight, scrollTop } = this.node;
    const { first, count, top } = inSight(scrollTop, clientHeight, this.total);
    this.sheet.style.transform = `translateY(${top}px)`;
    const rows = Array.from({ length: count }, (_, place) => this.row(first + place));
    this.sheet.replaceChildren(...rows);
    this.pages.want(first, count);
  }

  private row(index: number): HTMLElement {
    const row = make('div', 'line');
    const line = this.pages?.line(index);
    if (!line || !this.pages) {
      return row;
    }
    const { rank, search } = this.pages.choice;
    const where =
      rank < 0 ? `${line.rank} │ ${line.number + 1}` : String(line.number + 1);
    row.append(make('span', 'line-number', { 'aria-hidden': 'true' }, where));
    if (line.stderr) {
      row.dataset.stderr = '';
      row.append(make('span', 'unseen', {}, this.trans.__('stderr: ')));
    }
    row.append(make('span', 'line-text', {}, ...nodes(line.text, search)));
    if (search) {
      row.title = this.trans.__('Show it among its neighbours');
      row.addEventListener('click', () => this.listener.picked(line));
    }
    return row;
  }
}
