// The options besides the strategy.
import { make } from '../view/dom';
import type { ITranslate } from '../view';
import type { Controls, PickerState } from './source';

type Option = readonly [value: string, label: string];

/** A row of fields; each change calls `choose`. */
export class ControlBar {
  readonly node: HTMLElement;
  private gpus = make('select');
  private gpusLabel = make('span');
  private precision: HTMLSelectElement;
  private accumulate = make('input', '', { type: 'number', min: '1', max: '4096' });
  private batch: HTMLSelectElement;
  private checkpointing = make('input', '', { type: 'checkbox' });

  constructor(trans: ITranslate, choose: (controls: Controls) => void) {
    this.precision = select([
      ['', trans.__('as in the cell')],
      ['bf16', 'bf16'],
      ['fp16', 'fp16'],
      ['fp32', 'fp32']
    ]);
    this.batch = select([
      ['global', trans.__('of all ranks')],
      ['per-rank', trans.__('of each rank')]
    ]);
    this.node = make(
      'div',
      'picker-controls',
      { role: 'group', 'aria-label': trans.__('Options of the run') },
      field(this.gpusLabel, this.gpus),
      field(trans.__('Precision'), this.precision),
      field(trans.__('Batches per step'), this.accumulate),
      field(trans.__('Batch size in the cell is'), this.batch),
      make(
        'label',
        'picker-field nbmgpu-picker-check',
        {},
        this.checkpointing,
        trans.__('Recompute activations')
      )
    );
    this.node.addEventListener('input', () => choose(this.read()));
  }

  /** Show the current values. */
  update(state: PickerState): void {
    this.gpusLabel.textContent = state.devices;
    const { controls } = state;
    const counts = [...new Set([...state.counts, controls.gpus])].sort((a, b) => a - b);
    this.gpus.replaceChildren(
      ...counts.map(count => make('option', '', { value: String(count) }, String(count)))
    );
    this.gpus.value = String(controls.gpus);
    this.precision.value = controls.precision;
    if (document.activeElement !== this.accumulate) {
      this.accumulate.value = String(controls.accumulate);
    }
    this.batch.value = controls.batch;
    this.checkpointing.checked = controls.checkpointing;
  }

  private read(): Controls {
    const batches = Math.round(Number(this.accumulate.value));
    return {
      gpus: Number(this.gpus.value),
      precision: this.precision.value as Controls['precision'],
      accumulate: batches >= 1 ? batches : 1,
      batch: this.batch.value as Controls['batch'],
      checkpointing: this.checkpointing.checked
    };
  }
}

function select(options: readonly Option[]): HTMLSelectElement {
  const items = options.map(([value, label]) => make('option', '', { value }, label));
  return make('select', '', {}, ...items);
}

function field(label: string | HTMLElement, input: HTMLElement): HTMLElement {
  return make('label', 'picker-field', {}, label, input);
}
