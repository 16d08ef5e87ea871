import { describe, expect, it } from 'vitest';

import type { RunLine } from '../generated/report';
import type { Update } from '../generated/server';
import { withRemovedRuns } from './updates';

const news = (ids: string[], more = false, gone: string[] = []): Update => ({
  devices: [],
  runs: ids.map(id => ({ id }) as RunLine),
  gone,
  more,
  problems: []
});

describe('complete', () => {
  it('adds nothing to what the server tells in a row', () => {
    const known = new Set<string>();
    expect(withRemovedRuns(news(['c', 'b', 'a']), true, known).gone).toEqual([]);
    expect(withRemovedRuns(news(['c']), false, known).gone).toEqual([]);
    expect(withRemovedRuns(news([], false, ['b']), false, known).gone).toEqual(['b']);
    expect([...known].sort()).toEqual(['a', 'c']);
  });

  it('finds runs that went while the page was away', () => {
    const known = new Set(['a', 'b', 'c']);
    expect(withRemovedRuns(news(['d', 'c', 'a']), true, known).gone).toEqual(['b']);
    expect([...known].sort()).toEqual(['a', 'c', 'd']);
  });

  it('keeps runs that are only too old for the first word', () => {
    const known = new Set(['a', 'b', 'c']);
    expect(withRemovedRuns(news(['d', 'c'], true), true, known).gone).toEqual([]);
    expect(withRemovedRuns(news([]), true, known).gone.sort()).toEqual(['a', 'b', 'c', 'd']);
  });
});
