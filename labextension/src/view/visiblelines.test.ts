import { describe, expect, it } from 'vitest';
import { LINE, MAX_HEIGHT, heightOf, visibleLines, scrollTo } from './visiblelines';

const VIEW = 10 * LINE;

describe('a list that fits', () => {
  it('has the visible lines', () => {
    expect(visibleLines(0, VIEW, 1000)).toEqual({ first: 0, count: 11, top: 0 });
    expect(visibleLines(5.5 * LINE, VIEW, 1000)).toEqual({
      first: 5,
      count: 11,
      top: 5 * LINE
    });
  });

  it('ends with its last line', () => {
    const { first, count } = visibleLines(heightOf(1000) - VIEW, VIEW, 1000);
    expect(first + count).toBe(1000);
  });

  it('is empty for empty input', () => {
    expect(visibleLines(0, VIEW, 0).count).toBe(0);
    expect(visibleLines(99, VIEW, 0).count).toBe(0);
  });
});

describe('a list of a million lines', () => {
  const total = 1_000_000;

  it('is limited in height', () => {
    expect(heightOf(total)).toBe(MAX_HEIGHT);
  });

  it('can be scrolled to both ends', () => {
    expect(visibleLines(0, VIEW, total).first).toBe(0);
    const { first, count } = visibleLines(MAX_HEIGHT - VIEW, VIEW, total);
    expect(first + count).toBe(total);
  });

  it('reaches every line', () => {
    for (const index of [1, 12_345, 500_000, 999_000]) {
      expect(visibleLines(scrollTo(index, VIEW, total), VIEW, total).first).toBe(index);
    }
  });
});
