import { showDialog } from '@jupyterlab/apputils';
import { nullTranslator } from '@jupyterlab/translation';
import type { Widget } from '@lumino/widgets';
import { expect, test, vi } from 'vitest';

import { editLabels } from './labeldialog';

// jsdom lacks what Lumino and the dialogs of apputils need.
vi.hoisted(() => vi.stubGlobal('DragEvent', MouseEvent));
vi.mock('@jupyterlab/apputils', () => ({
  Dialog: { cancelButton: vi.fn(), okButton: vi.fn() },
  showDialog: vi.fn()
}));

const trans = nullTranslator.load('nbmgpu');
const LABELS = { name: 'first', tags: ['a'], note: '' };
const TYPED = { ...LABELS, tags: ['a'.repeat(60)] };
const CANCELLED = { button: { accept: false }, value: null };

/** The forms of all dialogs, each of which is answered by the next of `answers`. */
function dialogs(...answers: object[]): Widget[] {
  const forms: Widget[] = [];
  vi.mocked(showDialog).mockImplementation(options => {
    forms.push(options!.body as Widget);
    return Promise.resolve(answers.shift() as Awaited<ReturnType<typeof showDialog>>);
  });
  return forms;
}

test('what was typed is offered again, with the reason why it was not saved', async () => {
  const forms = dialogs({ button: { accept: true }, value: TYPED }, CANCELLED);
  const save = vi.fn().mockRejectedValue(new Error('A tag has at most 40 characters'));
  await editLabels('Run 1', LABELS, save, trans);
  expect(save).toHaveBeenCalledExactlyOnceWith(TYPED);
  expect(forms).toHaveLength(2);
  const [first, second] = forms.map(form => form.node);
  expect(first.querySelector('[role=alert]')).toBeNull();
  expect(second.querySelector('[role=alert]')?.textContent).toBe(
    'A tag has at most 40 characters'
  );
  const shown = [...second.querySelectorAll('input')].map(input => input.value);
  expect(shown).toEqual(['first', TYPED.tags[0]]);
});

test('the dialog ends when the labels are saved', async () => {
  const forms = dialogs({ button: { accept: true }, value: TYPED });
  await editLabels('Run 1', LABELS, vi.fn().mockResolvedValue(undefined), trans);
  expect(forms).toHaveLength(1);
});
