import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';

import type { RunComparison } from '../../generated/report';
import { errorText } from '../../view/errors';
import { mountRunComparison } from '../../view/runcomparison';
import { TabContent } from '../maintab';
import { isRunning } from '../runsstate';
import type { IRunsModel } from '../tokens';

/** Milliseconds between two requests while a compared run goes on. */
const INTERVAL = 2000;

/** The callbacks of the tab. */
export interface ICompareActions {
  /** Request the comparison. */
  compare(ids: readonly string[]): Promise<RunComparison>;
  /** Open a run in its own tab. */
  open(id: string): void;
  /** Called when other runs are compared than before. */
  onRunsChange(tab: CompareTab): void;
}

/** Several runs side by side, in a tab. */
export class CompareTab extends TabContent {
  constructor(
    ids: readonly string[],
    private readonly model: IRunsModel,
    private readonly actions: ICompareActions,
    private readonly trans: TranslationBundle
  ) {
    super();
    this.ids = [...ids];
    const tableActions = {
      open: (id: string) => actions.open(id),
      remove: (id: string) => this.remove(id)
    };
    this.view = mountRunComparison(this.node, tableActions, trans);
    this.setTitle();
    model.changed.connect(this.onRunsChanged, this);
    void this.load();
  }

  /** The ids of the compared runs. */
  runIds(): readonly string[] {
    return this.ids;
  }

  override dispose(): void {
    if (!this.isDisposed) {
      window.clearTimeout(this.timer);
      this.model.changed.disconnect(this.onRunsChanged, this);
      this.view.dispose();
      super.dispose();
    }
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    void this.load();
  }

  private remove(id: string): void {
    if (this.ids.length > 1) {
      this.ids = this.ids.filter(each => each !== id);
      this.setTitle();
      this.actions.onRunsChange(this);
      void this.load();
    }
  }

  private setTitle(): void {
    const count = this.ids.length;
    this.title.label = this.trans._n('%1 run', '%1 runs compared', count);
    this.title.caption = this.ids.join('\n');
  }

  /** Load again when the list has other entries for these runs: progress, an end, other labels. */
  private onRunsChanged(): void {
    const entries = this.model.state.runs.filter(run => this.ids.includes(run.id));
    const seen = JSON.stringify(
      entries.map(run => [run.labels, run.status.state, isRunning(run) && run.curve])
    );
    if (seen !== this.seen && this.isVisible && !this.timer) {
      this.seen = seen;
      this.timer = window.setTimeout(() => {
        this.timer = 0;
        void this.load();
      }, INTERVAL);
    }
  }

  private async load(): Promise<void> {
    const request = (this.requests += 1);
    let text = '';
    try {
      const comparison = await this.actions.compare(this.ids);
      if (this.isDisposed || request !== this.requests) {
        return; // a later request has the answer
      }
      this.view.update(comparison);
      comparison.runs.forEach(({ id, labels }) => this.names.set(id, labels.name));
      const deleted = comparison.missing.map(id => this.names.get(id) || id);
      if (deleted.length) {
        text = this.trans.__('Deleted: %1', deleted.join(', '));
      }
    } catch (reason) {
      text = errorText(reason);
    }
    this.setNotice(text);
  }

  private ids: string[];
  /** The names of runs by id: what is deleted has none any more. */
  private readonly names = new Map<string, string>();
  private seen = '';
  private requests = 0;
  private timer = 0;
  private readonly view: ReturnType<typeof mountRunComparison>;
}
