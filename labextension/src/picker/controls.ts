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
  private nodes = make('input', '', { type: 'number', min: '1', max: '1024' });
  private link = make('input', '', { type: 'number', min: '0', step: 'any' });
  private memory = make('input', '', { type: 'text', placeholder: '80 GB', size: '8' });
  private ofNodes: HTMLElement;

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
    this.ofNodes = make(
      'span',
      'picker-nodes',
      {},
      field(trans.__('Nodes'), this.nodes),
      field(trans.__('Gbit/s between nodes'), this.link),
      field(trans.__('Free memory of a GPU'), this.memory)
    );
    this.node = make(
      'div',
      'picker-controls',
      { role: 'group', 'aria-label': trans.__('Options of the run') },
      this.ofNodes,
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
    this.node.addEventListener('input', event => {
      // A text is complete, as "80 GB", when its field is left.
      if (event.target !== this.memory) {
        choose(this.read());
      }
    });
    this.memory.addEventListener('change', () => choose(this.read()));
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
    show(this.accumulate, String(controls.accumulate));
    this.ofNodes.hidden = !state.elsewhere;
    show(this.nodes, String(controls.nodes));
    show(this.link, controls.link ? String(controls.link) : '');
    show(this.memory, controls.memory);
    this.batch.value = controls.batch;
    this.checkpointing.checked = controls.checkpointing;
  }

  private read(): Controls {
    const count = (input: HTMLInputElement) =>
      Math.max(1, Math.round(Number(input.value)) || 1);
    return {
      gpus: Number(this.gpus.value),
      precision: this.precision.value as Controls['precision'],
      accumulate: count(this.accumulate),
      batch: this.batch.value as Controls['batch'],
      checkpointing: this.checkpointing.checked,
      nodes: count(this.nodes),
      link: Math.max(0, Number(this.link.value) || 0),
      memory: this.memory.value.trim()
    };
  }
}

/** Show a value, but leave what is being typed as it is. */
function show(input: HTMLInputElement, value: string): void {
  if (document.activeElement !== input) {
    input.value = value;
  }
}

function select(options: readonly Option[]): HTMLSelectElement {
  const items = options.map(([value, label]) => make('option', '', { value }, label));
  return make('select', '', {}, ...items);
}

function field(label: string | HTMLElement, input: HTMLElement): HTMLElement {
  return make('label', 'picker-field', {}, label, input);
}
