import { nullTranslator } from '@jupyterlab/translation';
import { expect, test } from 'vitest';

import type { RunLine } from '../generated/report';
import { endedText, statusText } from './messages';

const trans = nullTranslator.load('nbmgpu');
const run = {
  strategy: 'ddp',
  status: { label: 'running' },
  duration: 65,
  notebook: ''
} as RunLine;

function ended(label: string, rest: Partial<RunLine>): RunLine {
  const notebook = '/a/b.ipynb';
  const headline = 'ddp on 2 ranks (cpu)';
  return {
    ...run,
    id: 'x',
    headline,
    notebook,
    status: { ...run.status, label },
    ...rest
  };
}

test('the status bar names the run, or counts them', () => {
  expect(statusText([], trans)).toBe('');
  expect(statusText([run], trans)).toBe('ddp running 1:05');
  const other = { ...run, notebook: 'work/b.ipynb' };
  expect(statusText([other], trans)).toBe('b.ipynb: ddp running 1:05');
  expect(statusText([run, run], trans)).toBe('2 runs');
});

test('a notification has notebook, run, state and cause', () => {
  expect(endedText(ended('finished', { failure: '' }), trans)).toBe(
    'b.ipynb: ddp on 2 ranks (cpu) finished after 1:05'
  );
  expect(endedText(ended('failed', { failure: 'rank 1: oh', notebook: '' }), trans)).toBe(
    'x: ddp on 2 ranks (cpu) failed after 1:05. rank 1: oh'
  );
});
