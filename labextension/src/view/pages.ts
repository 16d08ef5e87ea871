import type { LogLine, LogPage, LogRequest } from '../generated/report';

/** Lines asked for at once. */
export const PAGE = 200;

/** Pages kept; of more, those that were asked for first are dropped. */
const KEPT = 100;

/** What is read: a rank's lines or all (-1), perhaps only those with `search`. */
export interface ILogChoice {
  rank: number;
  search: string;
}

interface IKeptPage {
  lines: LogLine[];
  /** Whether it may have changed since it was read. */
  old: boolean;
}

/** The lines of one log that have been read, by the page; what is missing is asked for. */
export class Pages {
  private pages = new Map<number, IKeptPage>();
  private asked = new Set<number>();
  /** Pages that could not be read; they are asked for again when there is more. */
  private missed = new Set<number>();
  private over = false;

  constructor(
    readonly choice: ILogChoice,
    private read: (request: LogRequest) => Promise<LogPage>,
    private arrived: (total: number) => void,
    private failed: (error: unknown) => void
  ) {}

  /** A line, if it is here. */
  line(index: number): LogLine | undefined {
    return this.pages.get(Math.floor(index / PAGE))?.lines[index % PAGE];
  }

  /** Ask for what is missing, or may have changed, among `count` lines from `first` on. */
  want(first: number, count: number): void {
    const last = Math.floor((first + count - 1) / PAGE);
    for (let page = Math.floor(first / PAGE); count > 0 && page <= last; page += 1) {
      if (this.lacks(page)) {
        void this.ask(page);
      }
    }
  }

  private lacks(page: number): boolean {
    const old = this.pages.get(page)?.old ?? true;
    return old && !this.asked.has(page) && !this.missed.has(page);
  }

  /** Lines from `index` on may have changed, or there are more. */
  grown(index: number): void {
    this.missed.clear();
    for (const [page, kept] of this.pages) {
      kept.old ||= (page + 1) * PAGE > index;
    }
  }

  /** Ask how many lines there are. */
  async count(): Promise<void> {
    await this.request(-1, 1);
  }

  /** Let answers that are still to come be for nothing. */
  close(): void {
    this.over = true;
  }

  private async ask(page: number): Promise<void> {
    this.asked.add(page);
    const answer = await this.request(page * PAGE, PAGE);
    this.asked.delete(page);
    if (!answer) {
      this.missed.add(page);
    } else {
      this.pages.delete(page);
      this.pages.set(page, { lines: answer.lines, old: false });
      if (this.pages.size > KEPT) {
        this.pages.delete(this.pages.keys().next().value ?? 0);
      }
      this.arrived(answer.total);
    }
  }

  private async request(first: number, count: number): Promise<LogPage | null> {
    try {
      const answer = await this.read({ ...this.choice, first, count });
      if (this.over) {
        return null;
      }
      if (first < 0) {
        this.arrived(answer.total);
      }
      return answer;
    } catch (error) {
      if (!this.over) {
        // After whoever asked has noted it: being told, one may look for the page again.
        setTimeout(() => this.failed(error));
      }
      return null;
    }
  }
}
