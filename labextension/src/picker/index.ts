// The picker view: framework-free, the same in a notebook's output and in JupyterLab's dialog.
export { mountPicker } from './mount';
export { WRITE_LINE, insertBelow, putOnNext, putOnOwn, type IWriteLine } from './cells';
export { hasLine, lineOf, withLine } from './firstline';
export type { IPickerAction, IPickerSource } from './source';
export type { Controls, PickerState } from '../generated/advisor';
