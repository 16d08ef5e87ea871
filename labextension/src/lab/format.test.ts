import { nullTranslator } from '@jupyterlab/translation';
import { expect, test } from 'vitest';

import { formatAge, formatPercent, formatUsage } from './format';

const trans = nullTranslator.load('nbmgpu');

test.each([
  [10, 'just now'],
  [60, '1 minute ago'],
  [3599, '59 minutes ago'],
  [7200, '2 hours ago'],
  [200000, '2 days ago']
])('%d seconds back is %s', (seconds, expected) => {
  expect(formatAge(1e9 - seconds, 1e9, trans)).toBe(expected);
});

test.each([
  [1.4 * 2 ** 30, 24 * 2 ** 30, '1.4 of 24 GiB'],
  [200 * 2 ** 20, 24 * 2 ** 30, '0.2 of 24 GiB'],
  [1010 * 2 ** 20, 1010 * 2 ** 20, '1.0 of 1.0 GiB'],
  [17, 512, '17 of 512 bytes']
])('%d of %d bytes are %s', (used, total, expected) => {
  expect(formatUsage(used, total, trans)).toBe(expected);
});

test('a fraction is formatted as a percentage', () => {
  expect(formatPercent(0.634)).toBe('63 %');
});
