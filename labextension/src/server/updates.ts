import type { Update } from '../generated/server';

/**
 * Add to the first news after a pause which runs went meanwhile: the server does not know what
 * this page had been told.  `known` are the ids that it was told, and is brought up to date.
 */
export function withRemovedRuns(news: Update, first: boolean, known: Set<string>): Update {
  const there = new Set(news.runs.map(run => run.id));
  const oldest = news.more ? (news.runs.at(-1)?.id ?? '') : '';
  const missed = first ? [...known].filter(id => !there.has(id) && id > oldest) : [];
  const gone = [...news.gone, ...missed];
  gone.forEach(id => known.delete(id));
  there.forEach(id => known.add(id));
  return { ...news, gone };
}
