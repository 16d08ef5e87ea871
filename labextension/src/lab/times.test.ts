import { expect, test, vi } from 'vitest';

import { formatTime, languageOf } from './times';

test('times are those of JupyterLab’s language, not of the browser’s', () => {
  vi.spyOn(navigator, 'languages', 'get').mockReturnValue(['en-US', 'en']);
  const language = languageOf({ languageCode: 'de-DE' });
  expect(language).toBe('de-DE');
  const afternoon = new Date(2026, 0, 1, 17, 56, 0).getTime() / 1000;
  expect(formatTime(afternoon, language, 'medium')).toBe('17:56:00');
});

test('the browser decides which English it is', () => {
  vi.spyOn(navigator, 'languages', 'get').mockReturnValue(['fr', 'en-GB']);
  expect(languageOf({ languageCode: 'en' })).toBe('en-GB');
});
