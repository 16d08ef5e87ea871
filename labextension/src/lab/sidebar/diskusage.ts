import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import { Throttler } from '@lumino/polling';
import { Signal } from '@lumino/signaling';
import { h, type VirtualElement } from '@lumino/virtualdom';

import type { DiskUsage } from '../../generated/server';
import { formatBytes } from '../../view/format';
import type { IRunsModel } from '../tokens';

/** Milliseconds between two measurements: after a change of the runs, and otherwise. */
const INTERVAL = { changed: 2000, usual: 60_000 };

const CLEAN = '%mgpu clean --older 7d --keep-tagged';

/**
 * What all runs take on the disk.  The server reads all folders for it, so it is measured while the
 * sidebar is visible only, and again when a run begins, ends or is deleted.
 */
export class DiskUsageMonitor implements IDisposable {
  readonly changed = new Signal<this, void>(this);

  constructor(
    private readonly model: IRunsModel,
    private readonly isVisible: () => boolean
  ) {
    this.timer = window.setInterval(() => this.refresh(), INTERVAL.usual);
    model.changed.connect(this.onRunsChanged, this);
  }

  /** Null until it is known; a server of an earlier version does not know it. */
  get usage(): DiskUsage | null {
    return this.currentUsage;
  }

  /** Measure again soon. */
  refresh(): void {
    void this.throttler.invoke();
  }

  get isDisposed(): boolean {
    return this.throttler.isDisposed;
  }

  dispose(): void {
    window.clearInterval(this.timer);
    this.throttler.dispose();
    Signal.clearData(this);
  }

  private onRunsChanged(): void {
    const { runs } = this.model.state;
    const seen = runs.map(run => `${run.id} ${run.status.state}`).join('\n');
    if (seen !== this.seen) {
      this.seen = seen;
      this.refresh();
    }
  }

  private async measure(): Promise<void> {
    if (document.hidden || !this.isVisible() || !this.model.state.listed) {
      return;
    }
    let usage: DiskUsage | null = null;
    try {
      usage = await this.model.diskUsage();
    } catch (reason) {
      // The notice about the connection says what is wrong.
      console.warn('nbmgpu: no size of the runs', reason);
    }
    if (!this.isDisposed) {
      this.currentUsage = usage;
      this.changed.emit();
    }
  }

  private currentUsage: DiskUsage | null = null;
  private seen = '';
  private readonly timer: number;
  private readonly throttler = new Throttler(() => this.measure(), {
    limit: INTERVAL.changed,
    edge: 'trailing'
  });
}

/** The line at the foot of the sidebar: `38 runs, 1.2 GiB`. */
export function diskLine(
  { runs, nbytes }: DiskUsage,
  folder: string,
  trans: TranslationBundle
): VirtualElement {
  const size = formatBytes(nbytes);
  return h.div(
    {
      key: 'disk',
      className: 'nbmgpu-DiskUsage',
      title: trans.__(
        'All runs on the disk, in %1. To remove old ones, run in a notebook: %2',
        folder,
        CLEAN
      )
    },
    trans._n('%1 run, %2', '%1 runs, %2', runs, size)
  );
}
