import type { Kernel } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';

import type { Controls, PickerState } from '../../generated/advisor';
import { expression, stateOf } from './expression';

/** Milliseconds after which an answer is no longer waited for. */
const PATIENCE = 15_000;

/** The kernel could not look at a cell; the message is for people. */
export class KernelUnavailableError extends Error {}

/**
 * Ask a kernel what can be picked for a cell.
 *
 * Nothing of the cell is run, and neither the history nor the cell's number notices.
 *
 * @throws KernelUnavailableError
 */
export async function askKernel(
  kernel: Kernel.IKernelConnection | null | undefined,
  source: string,
  controls: Partial<Controls>,
  trans: TranslationBundle
): Promise<PickerState> {
  if (!kernel) {
    throw new KernelUnavailableError(trans.__('The notebook has no kernel'));
  }
  if (kernel.status === 'busy') {
    throw new KernelUnavailableError(
      trans.__('The kernel is busy and cannot look at your model now')
    );
  }
  const future = kernel.requestExecute({
    code: '',
    silent: true,
    store_history: false,
    user_expressions: { picker: expression(source, controls) }
  });
  const reply = await Promise.race([future.done, silence(future.done)]);
  if (!reply) {
    future.dispose();
    throw new KernelUnavailableError(trans.__('The kernel takes too long to look at your model'));
  }
  const answer = reply.content.status === 'ok' && reply.content.user_expressions.picker;
  const said = answer as unknown as IAnswer | false | undefined;
  if (said && said.status === 'ok') {
    return stateOf(said.data['text/plain']);
  }
  const reason = said ? `${said.ename}: ${said.evalue}` : reply.content.status;
  throw new KernelUnavailableError(
    trans.__('The kernel could not look at your model (%1)', reason)
  );
}

/** What a kernel says of an expression. */
type IAnswer =
  | { status: 'ok'; data: { 'text/plain': string } }
  | { status: 'error'; ename: string; evalue: string };

/** Wait until an answer comes too late; null says that it does. */
function silence(done: Promise<unknown>): Promise<null> {
  return new Promise(resolve => {
    const timer = setTimeout(() => resolve(null), PATIENCE);
    const settle = () => clearTimeout(timer);
    done.then(settle, settle);
  });
}
