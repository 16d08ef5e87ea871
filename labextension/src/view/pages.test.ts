import { describe, expect, it } from 'vitest';
import type { LogPage, LogRequest } from '../generated/report';
import { PAGE, Pages } from './pages';

/** A log of `total` lines that records the requests. */
function log(total: number) {
  const asked: LogRequest[] = [];
  const read = (request: LogRequest): Promise<LogPage> => {
    asked.push(request);
    const first = request.first < 0 ? total - 1 : request.first;
    const count = Math.max(0, Math.min(request.count, total - first));
    const lines = Array.from({ length: count }, (_, place) => ({
      rank: 0,
      number: first + place,
      index: first + place,
      text: `line ${first + place}`,
      stderr: false
    }));
    return Promise.resolve({ rank: 0, search: '', first, total, lines });
  };
  const totals: number[] = [];
  const errors: unknown[] = [];
  const pages = new Pages(
    { rank: 0, search: '' },
    request => read(request),
    found => totals.push(found),
    error => errors.push(error)
  );
  return {
    asked,
    totals,
    errors,
    pages,
    settled: () => new Promise(done => setTimeout(done))
  };
}

describe('pages', () => {
  it('requests visible pages once', async () => {
    const { asked, pages, totals, settled } = log(1000);
    pages.load(PAGE - 5, 10);
    pages.load(PAGE - 5, 10);
    await settled();
    pages.load(PAGE - 5, 10);
    expect(asked.map(({ first, count }) => [first, count])).toEqual([
      [0, PAGE],
      [PAGE, PAGE]
    ]);
    expect(pages.line(PAGE + 3)?.text).toBe(`line ${PAGE + 3}`);
    expect(pages.line(5 * PAGE)).toBeUndefined();
    expect(totals).toEqual([1000, 1000]);
  });

  it('requests stale pages again, and keeps them until then', async () => {
    const { asked, pages, settled } = log(1000);
    pages.load(0, 10);
    pages.load(PAGE, 10);
    await settled();
    pages.invalidateFrom(PAGE + 7);
    expect(pages.line(PAGE)?.text).toBe(`line ${PAGE}`);
    pages.load(0, 10);
    pages.load(PAGE, 10);
    expect(asked.map(({ first }) => first)).toEqual([0, PAGE, PAGE]);
  });

  it('limits the cache', async () => {
    const { pages, settled } = log(1_000_000);
    for (let page = 0; page < 150; page += 1) {
      pages.load(page * PAGE, 1);
    }
    await settled();
    expect(pages.line(0)).toBeUndefined();
    expect(pages.line(149 * PAGE)).toBeDefined();
  });

  it('ignores responses after closing', async () => {
    const { pages, totals, settled } = log(10);
    pages.load(0, 5);
    pages.close();
    await settled();
    expect(totals).toEqual([]);
    expect(pages.line(0)).toBeUndefined();
  });

  it('reports errors, and requests again when the log grows', async () => {
    const errors: unknown[] = [];
    let calls = 0;
    const pages = new Pages(
      { rank: 0, search: '' },
      () => {
        calls += 1;
        return Promise.reject(new Error('gone'));
      },
      () => undefined,
      error => errors.push(error)
    );
    pages.load(0, 1);
    await new Promise(done => setTimeout(done, 20));
    pages.load(0, 1);
    expect(calls).toBe(1);
    pages.invalidateFrom(0);
    pages.load(0, 1);
    expect(calls).toBe(2);
    expect(String(errors[0])).toContain('gone');
  });
});
