import { describe, expect, it } from 'vitest';
import { drawable, unpack } from './points';

describe('unpack', () => {
  it('decodes points packed by Python', () => {
    // base64.b64encode(np.array([[1, 0.5], [2, np.nan], [3, -np.inf]], "<f4").tobytes())
    const { x, y } = unpack('AACAPwAAAD8AAABAAADAfwAAQEAAAID/');
    expect(x).toEqual([1, 2, 3]);
    expect(y).toEqual([0.5, NaN, -Infinity]);
  });

  it('is empty for empty input', () => {
    expect(unpack('')).toEqual({ x: [], y: [] });
  });
});

describe('drawable', () => {
  it('replaces undrawable values by gaps', () => {
    expect(drawable([1, NaN, -1, Infinity, 0], false)).toEqual([1, null, -1, null, 0]);
    expect(drawable([1, -1, 0], true)).toEqual([1, null, null]);
  });
});
