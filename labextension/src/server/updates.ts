import type { Update } from '../generated/server';

/**
 * Add the runs that were removed while disconnected to the first update after a reconnect: the
 * server does not know what this page received before.  `known` are the ids received so far, and
 * is updated.
 */
export function withRemovedRuns(
  update: Update,
  first: boolean,
  known: Set<string>
): Update {
  const present = new Set(update.runs.map(run => run.id));
  const oldest = update.more ? (update.runs.at(-1)?.id ?? '') : '';
  const removed = first ? [...known].filter(id => !present.has(id) && id > oldest) : [];
  const gone = [...update.gone, ...removed];
  gone.forEach(id => known.delete(id));
  present.forEach(id => known.add(id));
  return { ...update, gone };
}
