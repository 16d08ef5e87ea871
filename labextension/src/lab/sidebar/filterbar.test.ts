import { nullTranslator } from '@jupyterlab/translation';
import { VirtualDOM } from '@lumino/virtualdom';
import { expect, test, vi } from 'vitest';

import type { RunLine } from '../../generated/report';
import { filterBar, showFilters } from './filterbar';
import { NO_FILTERS, type IRunFilters } from './filters';

const RUNS = [
  { notebook: '/work/train.ipynb', strategy: 'ddp', status: { state: 'finished' } },
  { notebook: '', strategy: 'fsdp', status: { state: 'failed' } }
] as unknown as RunLine[];

function draw(given: Partial<IRunFilters> = {}, runs = RUNS) {
  const host = document.body.appendChild(document.createElement('div'));
  const filters = { ...NO_FILTERS, ...given };
  const filter = vi.fn();
  const reset = vi.fn();
  const trans = nullTranslator.load('nbmgpu');
  VirtualDOM.render(filterBar({ trans, runs, filters, filter, reset }), host);
  showFilters(host, filters);
  const select = (name: string): HTMLSelectElement =>
    host.querySelector(`select[aria-label="${name}"]`)!;
  const choose = (name: string, text: string): void => {
    const found = [...select(name).options].find(option => option.text === text);
    select(name).value = found!.value;
    select(name).dispatchEvent(new Event('change'));
  };
  return { host, filter, reset, select, choose };
}

test('each property has the values that occur, and any', () => {
  const { filter, choose, select } = draw();
  expect([...select('Strategy').options].map(option => option.text)).toEqual([
    'All strategies',
    'ddp',
    'fsdp'
  ]);
  choose('Strategy', 'fsdp');
  expect(filter).toHaveBeenLastCalledWith({ strategy: 'fsdp' });
  choose('Notebook', 'not from a notebook');
  expect(filter).toHaveBeenLastCalledWith({ notebook: '' });
  choose('State', 'All states');
  expect(filter).toHaveBeenLastCalledWith({ state: null });
});

test('the fields show the filters, and a button resets them', () => {
  expect(draw().host.querySelector('button')).toBeNull();
  const { host, reset, select } = draw({ text: 'lr', notebook: '', state: 'lost' });
  expect(host.querySelector<HTMLInputElement>('input')?.value).toBe('lr');
  const shown = ['Notebook', 'Strategy', 'State'].map(
    name => select(name).selectedOptions[0].text
  );
  expect(shown).toEqual(['not from a notebook', 'All strategies', 'lost']);
  host.querySelector('button')?.click();
  expect(reset).toHaveBeenCalledOnce();
});
