import type { ITranslator } from '@jupyterlab/translation';

/**
 * The language of JupyterLab for dates and times, as the browser spells it if it is one of the
 * user's: for English, `en-GB` rather than `en`.
 */
export function languageOf(translator: Pick<ITranslator, 'languageCode'> | null): string {
  const code = (translator?.languageCode ?? 'en').replace('_', '-');
  const name = (each: string): string => each.split('-')[0].toLowerCase();
  return navigator.languages.find(each => name(each) === name(code)) ?? code;
}

/** A time of the day, in seconds since the epoch. */
export function formatTime(
  seconds: number,
  language: string,
  timeStyle: 'short' | 'medium'
): string {
  return new Date(seconds * 1000).toLocaleTimeString(language, { timeStyle });
}

/** A day, in seconds since the epoch. */
export function formatDate(seconds: number, language: string): string {
  return new Date(seconds * 1000).toLocaleDateString(language, { dateStyle: 'short' });
}
