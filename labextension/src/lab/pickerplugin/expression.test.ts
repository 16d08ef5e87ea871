import { expect, test } from 'vitest';

import { expression, stateOf } from './expression';

test('any cell is encoded as one Python string', () => {
  const asked = expression('x = "a\\n"\n# ü', { gpus: 2 });
  expect(asked).toContain('.describe_cell("x = \\"a\\\\n\\"\\n# ü", ');
  expect(asked).toContain('.loads("{\\"gpus\\":2}")');
  expect(asked).not.toContain('\n');
});

test('a reply is decoded as UTF-8', () => {
  const bytes = new TextEncoder().encode(JSON.stringify({ subject: 'Modell “ü”' }));
  const text = `'${btoa(String.fromCharCode(...bytes))}'`;
  expect(stateOf(text).subject).toBe('Modell “ü”');
});
