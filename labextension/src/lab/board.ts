import type { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

import type { RunLine } from '../generated/report';
import type { News, RunSummary } from '../generated/server';
import type { RunsServer, ServerLink, Stream } from '../server';
import {
  EMPTY,
  endings,
  withLink,
  withNews,
  withOlder,
  withoutRun,
  withStatus,
  type ILedger
} from './ledger';
import type { IRunBoard } from './tokens';

/** Keeps the ledger up to date. */
export class RunBoard implements IRunBoard, IDisposable {
  readonly changed = new Signal<this, ILedger>(this);
  readonly ended = new Signal<this, RunLine>(this);

  constructor(private readonly server: RunsServer) {
    this.stream = server.listen(
      news => this.take(withNews(this.ledger, news)),
      link => this.onLink(link)
    );
  }

  get ledger(): ILedger {
    return this.kept;
  }

  async loadOlder(): Promise<void> {
    const oldest = this.ledger.runs.at(-1)?.id ?? '';
    const older = await this.server.runs(oldest);
    this.take(withOlder(this.ledger, older));
  }

  summary(id: string): Promise<RunSummary> {
    return this.server.summary(id);
  }

  stop(id: string, force: boolean): Promise<void> {
    return this.server.stop(id, force);
  }

  async remove(id: string): Promise<void> {
    await this.server.remove(id);
    this.take(withoutRun(this.ledger, id));
  }

  get isDisposed(): boolean {
    return this.stream.isDisposed;
  }

  dispose(): void {
    this.stream.dispose();
    Signal.clearData(this);
  }

  private take(ledger: ILedger): void {
    const before = this.kept;
    this.kept = ledger;
    endings(before, ledger).forEach(run => this.ended.emit(run));
    this.changed.emit(ledger);
  }

  private onLink(link: ServerLink): void {
    this.take(withLink(this.ledger, link));
    if (link === 'live') {
      // A server that was started anew may show another folder.
      this.server.status().then(
        status => this.take(withStatus(this.ledger, status)),
        reason => console.warn('nbmgpu: no status', reason)
      );
    }
  }

  private kept = EMPTY;
  private readonly stream: Stream<News>;
}
