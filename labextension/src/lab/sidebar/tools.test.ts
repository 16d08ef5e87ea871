import { nullTranslator } from '@jupyterlab/translation';
import { VirtualDOM } from '@lumino/virtualdom';
import { expect, test, vi } from 'vitest';

import { MAX_COMPARED, runTools, showExtent } from './tools';

function draw(selected: number, hidden = 0) {
  const host = document.body.appendChild(document.createElement('div'));
  const actions = { selectShown: vi.fn(), compare: vi.fn(), clear: vi.fn() };
  const trans = nullTranslator.load('nbmgpu');
  VirtualDOM.render(runTools({ trans, selected, hidden, ...actions }), host);
  const box = host.querySelector<HTMLInputElement>('input')!;
  const button = host.querySelector<HTMLButtonElement>('.nbmgpu-RunTools-compare')!;
  return { host, box, button, ...actions };
}

test('the number of selected runs is shown, and how many the filters hide', () => {
  expect(draw(0).host.textContent).toBe('Select allCompare');
  expect(draw(2).host.textContent).toBe('2 selectedCompareClear');
  expect(draw(3, 1).host.textContent).toBe('3 selected, 1 hiddenCompareClear');
});

test('two runs can be compared, up to the most that the server compares', () => {
  const isDisabled = (selected: number): boolean => draw(selected).button.disabled;
  expect([1, 2, MAX_COMPARED, MAX_COMPARED + 1].map(isDisabled)).toEqual([
    true,
    false,
    false,
    true
  ]);
  expect(draw(MAX_COMPARED + 1).host.textContent).toContain(
    'At most 32 runs can be compared'
  );
});

test('the checkbox has three states, and selects all or none', () => {
  const { host, box, selectShown } = draw(1);
  showExtent(host, 'some');
  expect([box.checked, box.indeterminate]).toEqual([false, true]);
  box.click();
  expect(selectShown).toHaveBeenLastCalledWith(true);
  showExtent(host, 'all');
  expect([box.checked, box.indeterminate]).toEqual([true, false]);
  box.click();
  expect(selectShown).toHaveBeenLastCalledWith(false);
});
