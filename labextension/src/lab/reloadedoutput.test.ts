import { nullTranslator } from '@jupyterlab/translation';
import type { ICodeCellModel } from '@jupyterlab/cells';
import { expect, test } from 'vitest';

import type { LogPage, LogRequest } from '../generated/report';
import { addReloadNotice, missingOutput, outputsAtEnd } from './reloadedoutput';

type Outputs = ICodeCellModel['outputs'];

const trans = nullTranslator.load('nbmgpu');
const PANEL = {
  output_type: 'display_data',
  data: { 'application/vnd.jupyter.widget-view+json': {} },
  metadata: { nbmgpu: { panel: 'a' } }
};
const SUMMARY = { html: '<p>done</p>', text: 'done' };

const stream = (text: string, name = 'stdout') => ({ output_type: 'stream', name, text });

/** The outputs of a cell, as far as these functions use them. */
function outputsOf(...items: object[]): Outputs {
  const model = {
    get length() {
      return items.length;
    },
    get: (index: number) => ({ metadata: {}, ...items[index] }),
    add: (item: object) => items.push(item),
    toJSON: () => items
  };
  return model as unknown as Outputs;
}

/** Serves `lines` as pages of a log; lines that start with `!` are stderr. */
function logOf(...lines: string[]) {
  return ({ rank, first, count, search }: LogRequest): Promise<LogPage> =>
    Promise.resolve({
      rank,
      search,
      first,
      total: lines.length,
      lines: lines.slice(first, first + count).map((text, place) => ({
        rank,
        number: first + place,
        index: first + place,
        text,
        stderr: text.startsWith('!')
      }))
    });
}

test('lines after those in the output are missing, a partial line from its end on', async () => {
  const outputs = outputsOf(PANEL, stream('one\ntw'));
  expect(
    await missingOutput(outputs, logOf('one', 'two', '!bad', 'three'), trans)
  ).toEqual([stream('o\n'), stream('!bad\n', 'stderr'), stream('three\n')]);
  expect(await missingOutput(outputsOf(stream('one\n')), logOf('one'), trans)).toEqual(
    []
  );
});

test('of many missing lines, the last are added', async () => {
  const lines = Array.from({ length: 5000 }, (_, index) => `line ${index}`);
  const [{ text }] = await missingOutput(outputsOf(), logOf(...lines), trans);
  expect(text).toContain('... 4000 more lines in the log of rank 0 ...\nline 4000\n');
  expect(text).toContain('line 4999\n');
});

test('the notice is added once, and replaced with the panel at the end', () => {
  const outputs = outputsOf(PANEL, stream('one\n'));
  addReloadNotice(outputs, 'a', trans);
  addReloadNotice(outputs, 'a', trans);
  expect(outputs.length).toBe(3);
  const final = outputsAtEnd(outputs.toJSON(), 'a', SUMMARY, [stream('two\n')]);
  expect(final).toEqual([
    {
      output_type: 'display_data',
      data: { 'text/html': '<p>done</p>', 'text/plain': 'done' },
      metadata: {}
    },
    stream('one\n'),
    stream('two\n')
  ]);
});
