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

/** A cell, and where its picker state comes from. */
export interface ICellRequest {
  readonly source: string;
  readonly kernel: Kernel.IKernelConnection | null | undefined;
  readonly server: RunsServer;
  readonly trans: TranslationBundle;
}

/**
 * The picker state of a cell, from its kernel, which knows the model. If the kernel is unavailable,
 * it comes from the server, without estimates, and says why.
 */
export async function describe(
  { source, kernel, server, trans }: ICellRequest,
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

/** The data source of the picker view in JupyterLab. */
export class CellPickerSource implements IPickerSource {
  constructor(
    private readonly request: ICellRequest,
    public state: PickerState,
    readonly actions: readonly IPickerAction[]
  ) {}

  onChange(callback: () => void): () => void {
    this.callbacks.add(callback);
    return () => void this.callbacks.delete(callback);
  }

  choose(controls: Controls): void {
    const current = (this.requests += 1);
    void describe(this.request, controls)
      .catch(reason => ({ ...this.state, problem: errorText(reason) }))
      .then(state => {
        // Ignore replies to all but the last request.
        if (current === this.requests) {
          this.setState(state);
        }
      });
  }

  private setState(state: PickerState): void {
    this.state = state;
    this.callbacks.forEach(callback => callback());
  }

  private requests = 0;
  private readonly callbacks = new Set<() => void>();
}
