import { describe, expect, it } from 'vitest';

import type { RunLine } from '../generated/report';
import type { Update } from '../generated/server';
import { withRemovedRuns } from './updates';

const update = (ids: string[], more = false, gone: string[] = []): Update => ({
  devices: [],
  runs: ids.map(id => ({ id }) as RunLine),
  gone,
  more,
  problems: []
});

describe('withRemovedRuns', () => {
  it('adds nothing to consecutive updates', () => {
    const known = new Set<string>();
    expect(withRemovedRuns(update(['c', 'b', 'a']), true, known).gone).toEqual([]);
    expect(withRemovedRuns(update(['c']), false, known).gone).toEqual([]);
    expect(withRemovedRuns(update([], false, ['b']), false, known).gone).toEqual(['b']);
    expect([...known].sort()).toEqual(['a', 'c']);
  });

  it('finds runs that were removed while disconnected', () => {
    const known = new Set(['a', 'b', 'c']);
    expect(withRemovedRuns(update(['d', 'c', 'a']), true, known).gone).toEqual(['b']);
    expect([...known].sort()).toEqual(['a', 'c', 'd']);
  });

  it('keeps runs that are only too old for the first update', () => {
    const known = new Set(['a', 'b', 'c']);
    expect(withRemovedRuns(update(['d', 'c'], true), true, known).gone).toEqual([]);
    expect(withRemovedRuns(update([]), true, known).gone.sort()).toEqual([
      'a',
      'b',
      'c',
      'd'
    ]);
  });
});
