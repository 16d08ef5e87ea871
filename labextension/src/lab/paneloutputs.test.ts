import { expect, test } from 'vitest';

import type { ICellModel } from '@jupyterlab/cells';
import { panelOutputs } from './paneloutputs';

const WIDGET = {
  'application/vnd.jupyter.widget-view+json': {},
  'text/plain': 'RunPanel()'
};

function cell(...outputs: { data: object; metadata: object }[]): ICellModel {
  const model = { length: outputs.length, get: (index: number) => outputs[index] };
  return { type: 'code', outputs: model } as unknown as ICellModel;
}

const panel = (run: unknown) => ({ data: WIDGET, metadata: { nbmgpu: { panel: run } } });

const found = (...cells: ICellModel[]): [string, number][] =>
  [...panelOutputs(cells)].map(({ run, index }) => [run, index]);

test('a panel is found by its metadata', () => {
  const text = { data: { 'text/plain': 'epoch 0' }, metadata: {} };
  expect(found(cell(), cell(text, panel('a')), cell(panel('b')))).toEqual([
    ['a', 1],
    ['b', 0]
  ]);
});

test('summaries, other widgets and text cells are no panels', () => {
  const summary = { data: { 'text/html': '' }, metadata: { nbmgpu: { panel: 'a' } } };
  const other = { data: WIDGET, metadata: {} };
  const text = { type: 'markdown' } as unknown as ICellModel;
  expect(found(text, cell(summary, other))).toEqual([]);
});

test('invalid metadata is ignored', () => {
  const odd = [null, 'a', 3, {}, { panel: 3 }];
  expect(
    found(cell(...odd.map(nbmgpu => ({ data: WIDGET, metadata: { nbmgpu } }))))
  ).toEqual([]);
});
