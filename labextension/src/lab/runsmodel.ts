import type { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

import type { LogPage, LogRequest, RunLine } from '../generated/report';
import type { RunLabels } from '../generated/runs';
import type { DiskUsage, RunSummary, Update } from '../generated/server';
import type { RunsServer, ServerConnectionState, Stream } from '../server';
import {
  EMPTY,
  endedRuns,
  withConnection,
  withLabels,
  withOlder,
  withoutRun,
  withStatus,
  withUpdate,
  type IRunsState
} from './runsstate';
import type { IRunsModel } from './tokens';

/** Keeps the state of runs and devices up to date. */
export class RunsModel implements IRunsModel, IDisposable {
  readonly changed = new Signal<this, IRunsState>(this);
  readonly ended = new Signal<this, RunLine>(this);

  constructor(private readonly server: RunsServer) {
    this.stream = server.listen(
      update => this.setState(withUpdate(this.state, update)),
      connection => this.onConnection(connection)
    );
  }

  get state(): IRunsState {
    return this.currentState;
  }

  async loadOlder(): Promise<void> {
    const oldest = this.state.runs.at(-1)?.id ?? '';
    const older = await this.server.runs(oldest);
    this.setState(withOlder(this.state, older));
  }

  diskUsage(): Promise<DiskUsage> {
    return this.server.diskUsage();
  }

  summary(id: string): Promise<RunSummary> {
    return this.server.summary(id);
  }

  logs(id: string, request: LogRequest): Promise<LogPage> {
    return this.server.logs(id, request);
  }

  stop(id: string, force: boolean): Promise<void> {
    return this.server.stop(id, force);
  }

  async setLabels(id: string, labels: RunLabels): Promise<void> {
    this.setState(withLabels(this.state, id, await this.server.setLabels(id, labels)));
  }

  async remove(id: string): Promise<void> {
    await this.server.remove(id);
    this.setState(withoutRun(this.state, id));
  }

  get isDisposed(): boolean {
    return this.stream.isDisposed;
  }

  dispose(): void {
    this.stream.dispose();
    Signal.clearData(this);
  }

  private setState(state: IRunsState): void {
    const before = this.currentState;
    this.currentState = state;
    endedRuns(before, state).forEach(run => this.ended.emit(run));
    this.changed.emit(state);
  }

  private onConnection(connection: ServerConnectionState): void {
    this.setState(withConnection(this.state, connection));
    if (connection === 'live') {
      // A restarted server may have other folders.
      this.server.status().then(
        status => this.setState(withStatus(this.state, status)),
        reason => console.warn('nbmgpu: no status', reason)
      );
    }
  }

  private currentState = EMPTY;
  private readonly stream: Stream<Update>;
}
