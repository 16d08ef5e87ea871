import { describe, expect, it } from 'vitest';

import type { RunLine } from '../generated/report';
import type { News } from '../generated/server';
import { complete } from './news';

const news = (ids: string[], more = false, gone: string[] = []): News => ({
  devices: [],
  runs: ids.map(id => ({ id }) as RunLine),
  gone,
  more,
  problems: []
});

describe('complete', () => {
  it('adds nothing to what the server tells in a row', () => {
    const known = new Set<string>();
    expect(complete(news(['c', 'b', 'a']), true, known).gone).toEqual([]);
    expect(complete(news(['c']), false, known).gone).toEqual([]);
    expect(complete(news([], false, ['b']), false, known).gone).toEqual(['b']);
    expect([...known].sort()).toEqual(['a', 'c']);
  });

  it('finds runs that went while the page was away', () => {
    const known = new Set(['a', 'b', 'c']);
    expect(complete(news(['d', 'c', 'a']), true, known).gone).toEqual(['b']);
    expect([...known].sort()).toEqual(['a', 'c', 'd']);
  });

  it('keeps runs that are only too old for the first word', () => {
    const known = new Set(['a', 'b', 'c']);
    expect(complete(news(['d', 'c'], true), true, known).gone).toEqual([]);
    expect(complete(news([]), true, known).gone.sort()).toEqual(['a', 'b', 'c', 'd']);
  });
});
