// Where the picker gets what it shows, and what may be done with the line that is chosen: by a
// widget in a notebook, by a dialog in JupyterLab.
import type { Controls, PickerState } from '../generated/advisor';

export type { Advice, Controls, Estimate, Part, PickerState } from '../generated/advisor';

/** Something to do with the chosen line; copying it is always offered. */
export interface IPickerAction {
  label: string;

  /** Do it, and say in a sentence what was done. */
  act(line: string): Promise<string>;
}

/** One model's strategies, as the view needs them. */
export interface IPickerSource {
  /** What to show now. */
  readonly state: PickerState;

  /** Call `callback` when there is another state.  Returns what ends this. */
  onChange(callback: () => void): () => void;

  /** Ask for the state with other controls; it comes when the kernel has time. */
  choose(controls: Controls): void;

  /** What can be done with the line here, the likeliest first. */
  readonly actions: readonly IPickerAction[];

  /** Hear of the line that is chosen; empty while there is none. */
  onLine?(line: string): void;
}
