import type { TranslationBundle } from '@jupyterlab/translation';

import type { RunLine } from '../generated/report';
import { formatDuration } from '../view/format';

/** What the status bar says of the runs that go on, newest first; nothing when there are none. */
export function statusText(runs: readonly RunLine[], trans: TranslationBundle): string {
  const [first, ...others] = runs;
  if (!first) {
    return '';
  }
  return others.length
    ? trans.__('%1 runs', runs.length)
    : `${first.strategy} ${first.word} ${formatDuration(first.duration)}`;
}

/** What to say when a run is over. */
export function endedText(run: RunLine, trans: TranslationBundle): string {
  const name = run.notebook.split('/').pop() || run.id;
  const said = trans.__(
    '%1: %2 %3 after %4',
    name,
    run.headline,
    run.word,
    formatDuration(run.duration)
  );
  return run.failure ? `${said}. ${run.failure}` : said;
}

/** What to say while the server is silent. */
export function connectionLostText(trans: TranslationBundle): string {
  return trans.__(
    'The server does not answer. What is below was true a while ago; it goes on as soon as the server is back.'
  );
}
