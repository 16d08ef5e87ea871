import type { RunLine } from '../generated/report';
import type { RunLabels } from '../generated/runs';
import type { DeviceUsage, Update, RunList, ServerStatus } from '../generated/server';
import type { ServerConnectionState } from '../server';
import { english, type ITranslate } from '../view/source';
import { headlineText, stateText } from '../view/words';

/** The state of runs and devices; immutable, replaced by each update of the server. */
export interface IRunsState {
  readonly connection: ConnectionState;
  readonly devices: readonly DeviceUsage[];
  /** Whether the server has sent its list of runs, which may be empty. */
  readonly listed: boolean;
  /** Newest first. */
  readonly runs: readonly RunLine[];
  /** Whether there are older runs than those in `runs`. */
  readonly more: boolean;
  /** Whether older runs were loaded than the server sends by itself. */
  readonly older: boolean;
  /** Configuration problems, in sentences. */
  readonly problems: readonly string[];
  /** The folder of all runs, and the one whose files JupyterLab shows; empty until known. */
  readonly runsRoot: string;
  readonly serverRoot: string;
}

/** The state of the connection; `waiting` before it is known. */
export type ConnectionState = ServerConnectionState | 'waiting';

export const EMPTY: IRunsState = {
  connection: 'waiting',
  devices: [],
  listed: false,
  runs: [],
  more: false,
  older: false,
  problems: [],
  runsRoot: '',
  serverRoot: ''
};

/** Set the folders that the server reported. */
export function withStatus(state: IRunsState, status: ServerStatus): IRunsState {
  return { ...state, runsRoot: status.runs_root, serverRoot: status.server_root };
}

/** Set the state of the connection. */
export function withConnection(
  state: IRunsState,
  connection: ConnectionState
): IRunsState {
  return { ...state, connection };
}

/** Apply an update of the stream. */
export function withUpdate(state: IRunsState, update: Update): IRunsState {
  const remaining = state.runs.filter(run => !update.gone.includes(run.id));
  return {
    ...state,
    connection: 'live',
    devices: update.devices,
    listed: true,
    runs: merged(remaining, update.runs),
    // Once older runs are loaded, their response says whether there are more.
    more: state.older ? state.more : update.more,
    problems: update.problems
  };
}

/** Add older runs. */
export function withOlder(state: IRunsState, older: RunList): IRunsState {
  return {
    ...state,
    runs: merged(state.runs, older.runs),
    more: older.more,
    older: true
  };
}

/** Replace the labels of a run. */
export function withLabels(state: IRunsState, id: string, labels: RunLabels): IRunsState {
  const runs = state.runs.map(run => (run.id === id ? { ...run, labels } : run));
  return { ...state, runs };
}

/** The runs whose texts contain all words of `filter`, in any case. */
export function matchingRuns(
  runs: readonly RunLine[],
  filter: string,
  trans: ITranslate = english
): RunLine[] {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  return runs.filter(run => {
    const { labels, status, title, headline, notebook, id } = run;
    const texts = [
      labels.name,
      ...labels.tags,
      labels.note,
      status.label,
      stateText(status.label, trans),
      title,
      headline,
      headlineText(headline, trans)
    ];
    const text = [...texts, notebook, id].join('\n').toLowerCase();
    return words.every(word => text.includes(word));
  });
}

/** Remove a run. */
export function withoutRun(state: IRunsState, id: string): IRunsState {
  return { ...state, runs: state.runs.filter(run => run.id !== id) };
}

/** Whether the run has live processes. */
export function isRunning(run: RunLine): boolean {
  return !run.status.over;
}

/** The running runs, newest first. */
export function runningRuns(state: IRunsState): RunLine[] {
  return state.runs.filter(isRunning);
}

/** Whether a run is in the list and running. */
export function isListedAsRunning(state: IRunsState, id: string): boolean {
  return state.runs.some(run => run.id === id && isRunning(run));
}

/**
 * Whether a run is known to be over.  One that is not in the list has just begun, has been deleted,
 * or is older than all that are listed: ids begin with the time.
 */
export function isKnownToBeOver(
  { connection, more, runs }: IRunsState,
  id: string
): boolean {
  const listed = runs.find(run => run.id === id);
  if (listed) {
    return !isRunning(listed);
  }
  return connection === 'live' && more && id < runs[runs.length - 1].id;
}

/**
 * Whether a run is known to be deleted: it is not in the list, although that has runs as old as it.
 */
export function isKnownToBeGone({ listed, more, runs }: IRunsState, id: string): boolean {
  const oldest = more ? (runs.at(-1)?.id ?? '') : '';
  return listed && id > oldest && !runs.some(run => run.id === id);
}

/** The runs that were running in `before` and are over in `after`. */
export function endedRuns(before: IRunsState, after: IRunsState): RunLine[] {
  const running = new Set(runningRuns(before).map(run => run.id));
  return after.runs.filter(run => running.has(run.id) && !isRunning(run));
}

function merged(known: readonly RunLine[], lines: readonly RunLine[]): RunLine[] {
  const all = new Map([...known, ...lines].map(run => [run.id, run]));
  return [...all.values()].sort((a, b) => b.created - a.created);
}
