import type { RunLine } from '../generated/report';
import type { DeviceUse, News, RunList, ServerStatus } from '../generated/server';
import type { ServerLink } from '../server';

/** What is known of the machine and of all runs; each word of the server makes a new one of it. */
export interface ILedger {
  readonly link: Link;
  readonly devices: readonly DeviceUse[];
  /** Newest first. */
  readonly runs: readonly RunLine[];
  /** Whether there are older runs than those in `runs`. */
  readonly more: boolean;
  /** Whether older runs than the server tells of by itself were asked for. */
  readonly older: boolean;
  /** What is missing on the machine, in sentences. */
  readonly problems: readonly string[];
  /** The folder of all runs, and the one whose files JupyterLab shows; empty until known. */
  readonly runsRoot: string;
  readonly serverRoot: string;
}

/** How the server stands; `waiting` until it was heard. */
export type Link = ServerLink | 'waiting';

export const EMPTY: ILedger = {
  link: 'waiting',
  devices: [],
  runs: [],
  more: false,
  older: false,
  problems: [],
  runsRoot: '',
  serverRoot: ''
};

/** Take in what holds as long as the server runs. */
export function withStatus(ledger: ILedger, status: ServerStatus): ILedger {
  return { ...ledger, runsRoot: status.runs_root, serverRoot: status.server_root };
}

/** Note how the server stands. */
export function withLink(ledger: ILedger, link: Link): ILedger {
  return { ...ledger, link };
}

/** Take in what the stream says. */
export function withNews(ledger: ILedger, news: News): ILedger {
  const told = ledger.runs.filter(run => !news.gone.includes(run.id));
  return {
    ...ledger,
    link: 'live',
    devices: news.devices,
    runs: merged(told, news.runs),
    // Whoever has asked for older runs knows better whether there are still more.
    more: ledger.older ? ledger.more : news.more,
    problems: news.problems
  };
}

/** Take in older runs. */
export function withOlder(ledger: ILedger, older: RunList): ILedger {
  return {
    ...ledger,
    runs: merged(ledger.runs, older.runs),
    more: older.more,
    older: true
  };
}

/** Forget a run. */
export function withoutRun(ledger: ILedger, id: string): ILedger {
  return { ...ledger, runs: ledger.runs.filter(run => run.id !== id) };
}

/** Whether processes of the run exist. */
export function isGoing(run: RunLine): boolean {
  return !run.over;
}

/** The runs that go on, newest first. */
export function going(ledger: ILedger): RunLine[] {
  return ledger.runs.filter(isGoing);
}

/** The runs that went on in `before` and are over in `after`. */
export function endings(before: ILedger, after: ILedger): RunLine[] {
  const went = new Set(going(before).map(run => run.id));
  return after.runs.filter(run => went.has(run.id) && !isGoing(run));
}

function merged(known: readonly RunLine[], lines: readonly RunLine[]): RunLine[] {
  const all = new Map([...known, ...lines].map(run => [run.id, run]));
  return [...all.values()].sort((a, b) => b.created - a.created);
}
