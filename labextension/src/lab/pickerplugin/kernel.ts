import type { Kernel } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';

import type { Controls, PickerState } from '../../generated/advisor';
import { expression, stateOf } from './expression';

/** Milliseconds to wait for a reply. */
const TIMEOUT = 15_000;

/** The kernel cannot evaluate a cell; the message is for people. */
export class KernelUnavailableError extends Error {}

/**
 * Request the picker state of a cell from its kernel.
 *
 * The cell is not run; the history and the execution count do not change.
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
      trans.__('The kernel is busy and cannot inspect the model')
    );
  }
  const future = kernel.requestExecute({
    code: '',
    silent: true,
    store_history: false,
    user_expressions: { picker: expression(source, controls) }
  });
  const reply = await Promise.race([future.done, timeout(future.done)]);
  if (!reply) {
    future.dispose();
    throw new KernelUnavailableError(trans.__('The kernel did not reply in time'));
  }
  const answer = reply.content.status === 'ok' && reply.content.user_expressions.picker;
  const result = answer as unknown as IExpressionResult | false | undefined;
  if (result && result.status === 'ok') {
    return stateOf(result.data['text/plain']);
  }
  const reason = result ? `${result.ename}: ${result.evalue}` : reply.content.status;
  throw new KernelUnavailableError(
    trans.__('The kernel could not inspect the model (%1)', reason)
  );
}

/** The reply to a user expression. */
type IExpressionResult =
  | { status: 'ok'; data: { 'text/plain': string } }
  | { status: 'error'; ename: string; evalue: string };

/** Resolve to null when the timeout has passed. */
function timeout(done: Promise<unknown>): Promise<null> {
  return new Promise(resolve => {
    const timer = setTimeout(() => resolve(null), TIMEOUT);
    const settle = () => clearTimeout(timer);
    done.then(settle, settle);
  });
}
