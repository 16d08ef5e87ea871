// The entry point of Picker (nbmgpu/ui/picker.py): the picker view with data from a widget's traits.
import '../../style/frame.css';
import '../../style/picker.css';
import { pageTranslations, type ITranslate } from '../view';
import { mountPicker, type IPickerSource, type PickerState } from '../picker';
import { requestLine, type IWriteLine } from '../picker/cells';

/** The part of an anywidget model that is used here. */
interface IModel {
  get(trait: string): unknown;
  set(trait: string, value: unknown): void;
  save_changes(): void;
  send(message: object): void;
  on(event: string, handler: () => void): void;
  off(event: string, handler: () => void): void;
}

function sourceOf(model: IModel, node: HTMLElement, trans: ITranslate): IPickerSource {
  const write = (where: IWriteLine['where'], done: string) => (line: string) =>
    Promise.resolve(
      requestLine(node, line, where)
        ? done
        : trans.__('Cells cannot be changed from here. Copy the line instead.')
    );
  return {
    get state() {
      return model.get('state') as PickerState;
    },
    onChange(callback) {
      model.on('change:state', callback);
      return () => model.off('change:state', callback);
    },
    choose(controls) {
      model.send({ kind: 'choose', controls });
    },
    actions: [
      {
        label: trans.__('Insert cell below'),
        act: write('below', trans.__('Inserted below.'))
      },
      {
        label: trans.__('Apply to the next cell'),
        act: write('next', trans.__('Added to the next code cell.'))
      }
    ],
    onLine(line) {
      if (model.get('line') !== line) {
        model.set('line', line);
        model.save_changes();
      }
    }
  };
}

function render({ model, el }: { model: IModel; el: HTMLElement }): () => void {
  const trans = pageTranslations();
  const mounted = mountPicker(el, sourceOf(model, el, trans), trans);
  return () => mounted.dispose();
}

export default { render };
