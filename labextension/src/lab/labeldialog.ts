import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import type { RunLabels } from '../generated/runs';
import { make } from '../view/dom';
import { errorText } from '../view/errors';

/** Let the user edit and `save` labels; what cannot be saved is offered again, with the reason. */
export async function editLabels(
  title: string,
  labels: RunLabels,
  save: (labels: RunLabels) => Promise<void>,
  trans: TranslationBundle
): Promise<void> {
  let problem = '';
  let typed = await askForLabels(title, labels, problem, trans);
  while (typed) {
    try {
      await save(typed);
      return;
    } catch (reason) {
      problem = errorText(reason);
    }
    typed = await askForLabels(title, typed, problem, trans);
  }
}

/** Ask for the name, the tags and the note of a run; null if the dialog is cancelled. */
async function askForLabels(
  title: string,
  labels: RunLabels,
  problem: string,
  trans: TranslationBundle
): Promise<RunLabels | null> {
  const result = await showDialog({
    title,
    body: new LabelForm(labels, problem, trans),
    buttons: [
      Dialog.cancelButton({ label: trans.__('Cancel') }),
      Dialog.okButton({ label: trans.__('Save') })
    ],
    focusNodeSelector: 'input'
  });
  return result.button.accept ? result.value : null;
}

/** The fields of the labels. */
class LabelForm extends Widget implements Dialog.IBodyWidget<RunLabels> {
  constructor(labels: RunLabels, problem: string, trans: TranslationBundle) {
    super();
    this.addClass('nbmgpu-LabelForm');
    this.name.value = labels.name;
    this.tags.value = labels.tags.join(', ');
    this.note.value = labels.note;
    if (problem) {
      this.node.append(make('div', 'LabelForm-problem', { role: 'alert' }, problem));
    }
    this.node.append(
      make('label', '', {}, trans.__('Name'), this.name),
      make('label', '', {}, trans.__('Tags, separated by commas or spaces'), this.tags),
      make('label', '', {}, trans.__('Note'), this.note)
    );
  }

  getValue(): RunLabels {
    return {
      name: this.name.value.trim(),
      tags: this.tags.value.split(/[,\s]+/).filter(Boolean),
      note: this.note.value.trim()
    };
  }

  private readonly name = make('input', '', { class: 'jp-mod-styled', maxlength: '80' });
  private readonly tags = make('input', '', { class: 'jp-mod-styled' });
  private readonly note = make('textarea', '', {
    class: 'jp-mod-styled',
    rows: '4',
    maxlength: '10000'
  });
}
