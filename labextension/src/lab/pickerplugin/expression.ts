/** Builds the Python expression that returns a picker state, and parses its value. */
import type { Controls, PickerState } from '../../generated/advisor';

/**
 * A Python expression whose value, a string, is the state of a picker in base64.
 *
 * JSON strings are valid Python strings, and the repr of a base64 string has no escapes.
 */
export function expression(source: string, controls: Partial<Controls>): string {
  const module = (name: string): string =>
    `__import__("importlib").import_module("${name}")`;
  const cell = JSON.stringify(source);
  const set = `${module('json')}.loads(${JSON.stringify(JSON.stringify(controls))})`;
  const state = `${module('nbmgpu.ui.picker')}.describe_cell(${cell}, ${set})`;
  const bytes = `${module('json')}.dumps(${state}).encode()`;
  return `${module('base64')}.b64encode(${bytes}).decode()`;
}

/** Parse the repr of the expression's value. */
export function stateOf(text: string): PickerState {
  const bytes = Uint8Array.from(atob(text.slice(1, -1)), letter => letter.charCodeAt(0));
  return JSON.parse(new TextDecoder().decode(bytes)) as PickerState;
}
