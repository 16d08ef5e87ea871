import type { TranslationBundle } from '@jupyterlab/translation';

import type { RunLine } from '../generated/report';
import { formatDuration } from '../view/format';
import { headlineText, stateText } from '../view/words';

/** The status bar text about the running runs, newest first; empty without runs. */
export function statusText(runs: readonly RunLine[], trans: TranslationBundle): string {
  const [first, ...others] = runs;
  if (!first) {
    return '';
  }
  if (others.length) {
    return trans.__('%1 runs', runs.length);
  }
  // Of which notebook: it may be another one than the open one.
  const notebook = first.notebook.split('/').pop();
  const state = stateText(first.status.label, trans);
  const text = `${first.strategy} ${state} ${formatDuration(first.duration)}`;
  return notebook ? `${notebook}: ${text}` : text;
}

/** The notification of a run that has ended. */
export function endedText(run: RunLine, trans: TranslationBundle): string {
  const name = run.notebook.split('/').pop() || run.id;
  const text = trans.__(
    '%1: %2 %3 after %4',
    name,
    headlineText(run.headline, trans),
    stateText(run.status.label, trans),
    formatDuration(run.duration)
  );
  return run.failure ? `${text}. ${run.failure}` : text;
}

/** The notice while the server does not respond. */
export function connectionLostText(trans: TranslationBundle): string {
  return trans.__(
    'The server does not respond. The data below is out of date and is updated when the server responds.'
  );
}
