import { expect, test } from 'vitest';

import { errorText } from './errors';

test('trouble is told with its way out', () => {
  const problem = Object.assign(new Error('Run x still goes on.'), {
    hint: 'Stop it first.'
  });
  expect(errorText(problem)).toBe('Run x still goes on. Stop it first.');
  expect(errorText(new Error('oh'))).toBe('oh');
  expect(errorText('oh')).toBe('oh');
});
