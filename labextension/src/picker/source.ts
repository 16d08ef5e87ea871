// The data source of the picker: a widget in a notebook, or a dialog in JupyterLab.
import type { Controls, PickerState } from '../generated/advisor';

export type { Advice, Controls, Estimate, Part, PickerState } from '../generated/advisor';

/** An action on the selected line; copying is always available. */
export interface IPickerAction {
  label: string;

  /** Run the action, and return a message with the result. */
  act(line: string): Promise<string>;
}

/** The strategies for one model. */
export interface IPickerSource {
  /** The current state. */
  readonly state: PickerState;

  /** Call `callback` when the state changes.  Returns a function that unsubscribes. */
  onChange(callback: () => void): () => void;

  /** Request the state with other options; it arrives when the kernel is idle. */
  choose(controls: Controls): void;

  /** The available actions, most likely first. */
  readonly actions: readonly IPickerAction[];

  /** The selected line has changed; empty without one. */
  onLine?(line: string): void;
}
