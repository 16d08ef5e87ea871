// The picker view: framework-free, the same in a notebook's output and in JupyterLab's dialog.
export { mountPicker } from './mount';
export {
  WRITE_LINE,
  insertCellBelow,
  setLineOfNextCell,
  setLineOfCell,
  type IWriteLine
} from './cells';
export { hasLine, lineOf, withLine } from './magicline';
export type { IPickerAction, IPickerSource } from './source';
export type { Controls, PickerState } from '../generated/advisor';
