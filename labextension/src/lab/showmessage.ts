import { Notification } from '@jupyterlab/apputils';

import { errorText } from '../view/errors';

/** Milliseconds for which a message is shown; by default, JupyterLab only counts it at the bell. */
const SHOWN = 8000;

/** Show a message in a corner of the page for some seconds. */
export function showMessage(
  message: string,
  kind: 'info' | 'warning' | 'error' = 'info'
): void {
  Notification.emit(message, kind, { autoClose: SHOWN });
}

/** Show what is wrong, and what to do about it, in a corner of the page for some seconds. */
export function showError(reason: unknown): void {
  showMessage(errorText(reason), 'error');
}
