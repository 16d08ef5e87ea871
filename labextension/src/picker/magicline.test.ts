import { expect, test } from 'vitest';

import { hasLine, lineOf, withLine } from './magicline';

test('only %%mgpu is recognized', () => {
  expect(hasLine('%%mgpu\nx = 1')).toBe(true);
  expect(hasLine('%%mgpu --gpus 2\nx = 1')).toBe(true);
  expect(hasLine('%%mgpus\nx = 1')).toBe(false);
  expect(hasLine(' x = "%%mgpu"')).toBe(false);
  expect(lineOf('%%mgpu --gpus 2 \nx = 1')).toBe('%%mgpu --gpus 2');
  expect(lineOf('x = 1')).toBe('');
});

test('a line is added, or replaces an existing one', () => {
  expect(withLine('x = 1\n', '%%mgpu -g 2')).toBe('%%mgpu -g 2\nx = 1\n');
  expect(withLine('%%mgpu --gpus 4\nx = 1', '%%mgpu -g 2')).toBe('%%mgpu -g 2\nx = 1');
  expect(withLine('%%mgpu', '%%mgpu -g 2')).toBe('%%mgpu -g 2');
  expect(withLine('', '%%mgpu -g 2')).toBe('%%mgpu -g 2');
});
