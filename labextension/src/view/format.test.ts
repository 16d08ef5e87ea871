import { expect, it } from 'vitest';
import {
  formatBytes,
  formatDuration,
  formatNumber,
  formatSeconds,
  formatShare
} from './format';

// The same cases as in Python's tests of text_format, except for rounding: both are shown together.
it.each([
  [0, '0'],
  [0.1, '0.1'],
  [1 / 3, '0.3333'],
  [123.456, '123.5'],
  [-5678.9, '-5,679'],
  [1.25e-5, '1.25e-5'],
  [-2e-100, '-2e-100'],
  [3e9, '3e9'],
  [Infinity, 'inf'],
  [-Infinity, '-inf'],
  [NaN, 'nan']
])('%d is written %s', (value, text) => {
  expect(formatNumber(value)).toBe(text);
});

it.each([
  [0.00035, '0.35 ms'],
  [0.0123, '12.3 ms'],
  [1.234, '1.23 s'],
  [90, '1:30']
])('%d seconds are written %s', (seconds, text) => {
  expect(formatSeconds(seconds)).toBe(text);
});

it.each([
  [-3, '0 s'],
  [7.9, '7 s'],
  [750, '12:30'],
  [11100, '3:05:00']
])('%d seconds are %s', (seconds, text) => {
  expect(formatDuration(seconds)).toBe(text);
});

it.each([
  [0, '0 %'],
  [0.001, '< 1 %'],
  [0.25, '25 %'],
  [0.999, '> 99 %'],
  [1, '100 %']
])('the share %d is written %s', (share, text) => {
  expect(formatShare(share)).toBe(text);
});

it.each([
  [12, '12 bytes'],
  [1536, '1.5 KiB'],
  [100 * 2 ** 20, '100 MiB']
])('%d bytes are written %s', (size, text) => {
  expect(formatBytes(size)).toBe(text);
});
