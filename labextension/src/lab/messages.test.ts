import { nullTranslator } from '@jupyterlab/translation';
import { expect, test } from 'vitest';

import type { RunLine } from '../generated/report';
import { endedText, statusText } from './messages';

const trans = nullTranslator.load('nbmgpu');
const run = { strategy: 'ddp', word: 'running', duration: 65 } as RunLine;

test('the status bar names the run, or counts them', () => {
  expect(statusText([], trans)).toBe('');
  expect(statusText([run], trans)).toBe('ddp running 1:05');
  expect(statusText([run, run], trans)).toBe('2 runs');
});

test('a notification has notebook, run, state and cause', () => {
  const over = {
    ...run,
    headline: 'ddp on 2 ranks (cpu)',
    notebook: '/a/b.ipynb',
    id: 'x'
  };
  expect(endedText({ ...over, word: 'finished', failure: '' }, trans)).toBe(
    'b.ipynb: ddp on 2 ranks (cpu) finished after 1:05'
  );
  expect(
    endedText({ ...over, word: 'failed', failure: 'rank 1: oh', notebook: '' }, trans)
  ).toBe('x: ddp on 2 ranks (cpu) failed after 1:05. rank 1: oh');
});
