import type { Kernel } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';

import {
  lineOf,
  type Controls,
  type IPickerAction,
  type IPickerSource,
  type PickerState
} from '../../picker';
import type { RunsServer } from '../../server';
import { errorText } from '../../view/errors';
import { askKernel, KernelUnavailableError } from './kernel';

/** Whom to ask about a cell. */
export interface ICell {
  readonly source: string;
  readonly kernel: Kernel.IKernelConnection | null | undefined;
  readonly server: RunsServer;
  readonly trans: TranslationBundle;
}

/**
 * What can be picked for a cell: its kernel knows the model; while that has no time, the server
 * knows the machine, and it is said why there are no estimates.
 */
export async function describe(
  { source, kernel, server, trans }: ICell,
  controls: Partial<Controls> = {}
): Promise<PickerState> {
  try {
    return await askKernel(kernel, source, controls, trans);
  } catch (reason) {
    if (!(reason instanceof KernelUnavailableError)) {
      throw reason;
    }
    const state = await server.pick({ line: lineOf(source), controls });
    return { ...state, subject: trans.__('%1: no estimates', reason.message) };
  }
}

/** Feeds the picker view in JupyterLab. */
export class CellPickerSource implements IPickerSource {
  constructor(
    private readonly question: ICell,
    public state: PickerState,
    readonly actions: readonly IPickerAction[]
  ) {}

  onChange(callback: () => void): () => void {
    this.callbacks.add(callback);
    return () => void this.callbacks.delete(callback);
  }

  choose(controls: Controls): void {
    const asked = (this.asked += 1);
    void describe(this.question, controls)
      .catch(reason => ({ ...this.state, problem: errorText(reason) }))
      .then(state => {
        // Of several questions, the answer to the last one counts.
        if (asked === this.asked) {
          this.take(state);
        }
      });
  }

  private take(state: PickerState): void {
    this.state = state;
    this.callbacks.forEach(callback => callback());
  }

  private asked = 0;
  private readonly callbacks = new Set<() => void>();
}
