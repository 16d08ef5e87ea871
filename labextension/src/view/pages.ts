import type { LogLine, LogPage, LogRequest } from '../generated/report';

/** Lines of a page. */
export const PAGE = 200;

/** Maximum number of cached pages; the oldest are dropped. */
const MAX_PAGES = 100;

/** The lines to read: of a rank or of all (-1), optionally only those containing `search`. */
export interface ILogFilter {
  rank: number;
  search: string;
}

interface ICachedPage {
  lines: LogLine[];
  /** Whether it may have changed since it was read. */
  stale: boolean;
}

/** A cache of the pages of one log. */
export class Pages {
  private pages = new Map<number, ICachedPage>();
  private pending = new Set<number>();
  /** Pages that could not be read; they are requested again when the log grows. */
  private failedPages = new Set<number>();
  private closed = false;

  constructor(
    readonly filter: ILogFilter,
    private read: (request: LogRequest) => Promise<LogPage>,
    private arrived: (total: number) => void,
    private failed: (error: unknown) => void
  ) {}

  /** A line, if it is cached. */
  line(index: number): LogLine | undefined {
    return this.pages.get(Math.floor(index / PAGE))?.lines[index % PAGE];
  }

  /** Request missing and stale pages of `count` lines from `first` on. */
  load(first: number, count: number): void {
    const last = Math.floor((first + count - 1) / PAGE);
    for (let page = Math.floor(first / PAGE); count > 0 && page <= last; page += 1) {
      if (this.isMissing(page)) {
        void this.loadPage(page);
      }
    }
  }

  private isMissing(page: number): boolean {
    const stale = this.pages.get(page)?.stale ?? true;
    return stale && !this.pending.has(page) && !this.failedPages.has(page);
  }

  /** Lines from `index` on may have changed, or lines were added. */
  invalidateFrom(index: number): void {
    this.failedPages.clear();
    for (const [page, cached] of this.pages) {
      cached.stale ||= (page + 1) * PAGE > index;
    }
  }

  /** Request the number of lines. */
  async count(): Promise<void> {
    await this.request(-1, 1);
  }

  /** Ignore pending responses. */
  close(): void {
    this.closed = true;
  }

  private async loadPage(page: number): Promise<void> {
    this.pending.add(page);
    const answer = await this.request(page * PAGE, PAGE);
    this.pending.delete(page);
    if (!answer) {
      this.failedPages.add(page);
    } else {
      this.pages.delete(page);
      this.pages.set(page, { lines: answer.lines, stale: false });
      if (this.pages.size > MAX_PAGES) {
        this.pages.delete(this.pages.keys().next().value ?? 0);
      }
      this.arrived(answer.total);
    }
  }

  private async request(first: number, count: number): Promise<LogPage | null> {
    try {
      const answer = await this.read({ ...this.filter, first, count });
      if (this.closed) {
        return null;
      }
      if (first < 0) {
        this.arrived(answer.total);
      }
      return answer;
    } catch (error) {
      if (!this.closed) {
        // Deferred until the caller has recorded the failure: the callback may request the page again.
        setTimeout(() => this.failed(error));
      }
      return null;
    }
  }
}
