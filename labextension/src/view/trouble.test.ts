import { expect, test } from 'vitest';

import { troubleWords } from './trouble';

test('trouble is told with its way out', () => {
  const problem = Object.assign(new Error('Run x still goes on.'), {
    hint: 'Stop it first.'
  });
  expect(troubleWords(problem)).toBe('Run x still goes on. Stop it first.');
  expect(troubleWords(new Error('oh'))).toBe('oh');
  expect(troubleWords('oh')).toBe('oh');
});
