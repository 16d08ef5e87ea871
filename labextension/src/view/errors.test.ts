import { expect, test } from 'vitest';

import { errorText } from './errors';

test('an error text contains the hint', () => {
  const problem = Object.assign(new Error('Run x is still running.'), {
    hint: 'Stop it first.'
  });
  expect(errorText(problem)).toBe('Run x is still running. Stop it first.');
  expect(errorText(new Error('oh'))).toBe('oh');
  expect(errorText('oh')).toBe('oh');
});
