import type { TranslationBundle } from '@jupyterlab/translation';

import { UNITS } from '../view/format';

/** Formats of numbers and times, short enough for the sidebar. */

/** The time from `then` to `now`, both in seconds since the epoch. */
export function formatAge(then: number, now: number, trans: TranslationBundle): string {
  const minutes = Math.floor((now - then) / 60);
  const hours = Math.floor(minutes / 60);
  const days = Math.floor(hours / 24);
  if (minutes < 1) {
    return trans.__('just now');
  }
  if (hours < 1) {
    return trans._n('%1 minute ago', '%1 minutes ago', minutes);
  }
  if (days < 1) {
    return trans._n('%1 hour ago', '%1 hours ago', hours);
  }
  return trans._n('%1 day ago', '%1 days ago', days);
}

/** Used and total bytes, in the unit of the total: `1.4 of 24 GiB`. */
export function formatUsage(
  used: number,
  total: number,
  trans: TranslationBundle
): string {
  let unit = 0;
  while (total / 1024 ** unit >= 1000 && unit < UNITS.length - 1) {
    unit += 1;
  }
  const short = (bytes: number): string => {
    const value = bytes / 1024 ** unit;
    return value.toFixed(unit && value < 10 ? 1 : 0);
  };
  return trans.__('%1 of %2 %3', short(used), short(total), UNITS[unit]);
}

/** A fraction from 0 to 1 as a percentage. */
export function formatPercent(part: number): string {
  return `${Math.round(100 * part)} %`;
}
