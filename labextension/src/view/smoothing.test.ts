import { describe, expect, it } from 'vitest';
import { interpolated, smoothed } from './smoothing';

const x = Array.from({ length: 101 }, (_, i) => i);

describe('smoothed', () => {
  it('does not change points at strength 0', () => {
    const points = { x, y: x.map(Math.sin) };
    expect(smoothed(points, 0)).toBe(points);
  });

  it('keeps constant values up to both ends', () => {
    expect(
      smoothed({ x, y: x.map(() => 3) }, 1).y.every(y => Math.abs(y - 3) < 1e-9)
    ).toBe(true);
  });

  it('removes noise without a lag', () => {
    const { y } = smoothed({ x, y: x.map(i => i + (i % 2 ? 10 : -10)) }, 0.6);
    const inner = y.slice(20, 80).map((value, i) => Math.abs(value - (i + 20)));
    expect(Math.max(...inner)).toBeLessThan(2);
  });

  it('ignores nonfinite values', () => {
    const y = x.map(i => (i === 50 ? NaN : 1));
    expect(smoothed({ x, y }, 0.5).y.every(value => Math.abs(value - 1) < 1e-9)).toBe(
      true
    );
  });

  it('accepts a single point', () => {
    expect(smoothed({ x: [5], y: [2] }, 1).y).toEqual([2]);
  });
});

describe('interpolated', () => {
  it('interpolates linearly, and is constant outside', () => {
    const points = { x: [0, 10], y: [0, 100] };
    expect(interpolated(points, [-5, 0, 2.5, 10, 12])).toEqual([0, 0, 25, 100, 100]);
  });

  it('is empty for empty input', () => {
    expect(interpolated({ x: [], y: [] }, [1])).toEqual([NaN]);
  });
});
