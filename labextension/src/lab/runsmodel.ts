import type { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

import type { RunLine } from '../generated/report';
import type { Update, RunSummary } from '../generated/server';
import type { RunsServer, ServerConnectionState, Stream } from '../server';
import {
  EMPTY,
  endedRuns,
  withConnection,
  withUpdate,
  withOlder,
  withoutRun,
  withStatus,
  type IRunsState
} from './runsstate';
import type { IRunsModel } from './tokens';

/** Keeps the ledger up to date. */
export class RunsModel implements IRunsModel, IDisposable {
  readonly changed = new Signal<this, IRunsState>(this);
  readonly ended = new Signal<this, RunLine>(this);

  constructor(private readonly server: RunsServer) {
    this.stream = server.listen(
      news => this.take(withUpdate(this.state, news)),
      link => this.onConnection(link)
    );
  }

  get state(): IRunsState {
    return this.kept;
  }

  async loadOlder(): Promise<void> {
    const oldest = this.state.runs.at(-1)?.id ?? '';
    const older = await this.server.runs(oldest);
    this.take(withOlder(this.state, older));
  }

  summary(id: string): Promise<RunSummary> {
    return this.server.summary(id);
  }

  stop(id: string, force: boolean): Promise<void> {
    return this.server.stop(id, force);
  }

  async remove(id: string): Promise<void> {
    await this.server.remove(id);
    this.take(withoutRun(this.state, id));
  }

  get isDisposed(): boolean {
    return this.stream.isDisposed;
  }

  dispose(): void {
    this.stream.dispose();
    Signal.clearData(this);
  }

  private take(state: IRunsState): void {
    const before = this.kept;
    this.kept = state;
    endedRuns(before, state).forEach(run => this.ended.emit(run));
    this.changed.emit(state);
  }

  private onConnection(link: ServerConnectionState): void {
    this.take(withConnection(this.state, link));
    if (link === 'live') {
      // A server that was started anew may show another folder.
      this.server.status().then(
        status => this.take(withStatus(this.state, status)),
        reason => console.warn('nbmgpu: no status', reason)
      );
    }
  }

  private kept = EMPTY;
  private readonly stream: Stream<Update>;
}
