import type { RunLine } from '../generated/report';
import type { DeviceUsage, Update, RunList, ServerStatus } from '../generated/server';
import type { ServerConnectionState } from '../server';

/** What is known of the machine and of all runs; each word of the server makes a new one of it. */
export interface IRunsState {
  readonly link: ConnectionState;
  readonly devices: readonly DeviceUsage[];
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
export type ConnectionState = ServerConnectionState | 'waiting';

export const EMPTY: IRunsState = {
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
export function withStatus(state: IRunsState, status: ServerStatus): IRunsState {
  return { ...state, runsRoot: status.runs_root, serverRoot: status.server_root };
}

/** Note how the server stands. */
export function withConnection(state: IRunsState, link: ConnectionState): IRunsState {
  return { ...state, link };
}

/** Take in what the stream says. */
export function withUpdate(state: IRunsState, news: Update): IRunsState {
  const told = state.runs.filter(run => !news.gone.includes(run.id));
  return {
    ...state,
    link: 'live',
    devices: news.devices,
    runs: merged(told, news.runs),
    // Whoever has asked for older runs knows better whether there are still more.
    more: state.older ? state.more : news.more,
    problems: news.problems
  };
}

/** Take in older runs. */
export function withOlder(state: IRunsState, older: RunList): IRunsState {
  return {
    ...state,
    runs: merged(state.runs, older.runs),
    more: older.more,
    older: true
  };
}

/** Forget a run. */
export function withoutRun(state: IRunsState, id: string): IRunsState {
  return { ...state, runs: state.runs.filter(run => run.id !== id) };
}

/** Whether processes of the run exist. */
export function isRunning(run: RunLine): boolean {
  return !run.over;
}

/** The runs that go on, newest first. */
export function runningRuns(state: IRunsState): RunLine[] {
  return state.runs.filter(isRunning);
}

/** The runs that went on in `before` and are over in `after`. */
export function endedRuns(before: IRunsState, after: IRunsState): RunLine[] {
  const went = new Set(runningRuns(before).map(run => run.id));
  return after.runs.filter(run => went.has(run.id) && !isRunning(run));
}

function merged(known: readonly RunLine[], lines: readonly RunLine[]): RunLine[] {
  const all = new Map([...known, ...lines].map(run => [run.id, run]));
  return [...all.values()].sort((a, b) => b.created - a.created);
}
