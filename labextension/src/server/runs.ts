import { ServerConnection } from '@jupyterlab/services';

import type { PickerState } from '../generated/advisor';
import type {
  CurveLine,
  CurveRequest,
  LogPage,
  LogRequest,
  Parts,
  RankRequest,
  RankRow,
  RunComparison
} from '../generated/report';
import type { RunLabels } from '../generated/runs';
import type {
  Catalogue,
  DiskUsage,
  Update,
  PickRequest,
  RunList,
  RunSummary,
  ServerStatus,
  StopRequest
} from '../generated/server';
import { address, type Query } from './address';
import { withRemovedRuns } from './updates';
import { ServerError } from './errors';
import { runRoute } from './route';
import { Stream, type StreamState } from './stream';

/** The state of the connection; `missing`: the server extension is not installed. */
export type ServerConnectionState = StreamState | 'missing';

/** The REST client of nbmgpu's server extension. */
export class RunsServer {
  constructor(readonly settings = ServerConnection.makeSettings()) {}

  /** The current state of the machine. */
  status(): Promise<ServerStatus> {
    return this.getJson('status');
  }

  /** The strategies and flags of `%%mgpu`. */
  catalogue(): Promise<Catalogue> {
    return this.getJson('catalogue');
  }

  /** The state of a picker without a model. */
  async pick(request: PickRequest): Promise<PickerState> {
    const init = { method: 'POST', body: JSON.stringify(request) };
    return (await this.send('pick', init)).json() as Promise<PickerState>;
  }

  /** The newest runs, or the newest of those before the run `before`. */
  runs(before = '', limit = 200): Promise<RunList> {
    return this.getJson('runs', { before, limit });
  }

  /** What the folders of all runs take on the disk. */
  diskUsage(): Promise<DiskUsage> {
    return this.getJson('disk');
  }

  /** All parts of a run. */
  run(id: string): Promise<Parts> {
    return this.getJson(runRoute(id));
  }

  /** The summary of a finished run. */
  summary(id: string): Promise<RunSummary> {
    return this.getJson(runRoute(id, 'summary'));
  }

  /** A range of a metric at a higher resolution; null if it has no points. */
  curve(id: string, { name, first, last }: CurveRequest): Promise<CurveLine | null> {
    return this.getJson(runRoute(id, 'curve'), { name, first, last });
  }

  /** Several runs side by side. */
  compare(ids: readonly string[]): Promise<RunComparison> {
    return this.getJson('compare', { runs: ids.join() });
  }

  /** Replace the name, the tags and the note of a run. */
  async setLabels(id: string, labels: RunLabels): Promise<RunLabels> {
    const init = { method: 'PUT', body: JSON.stringify(labels) };
    return (await this.send(runRoute(id, 'labels'), init)).json() as Promise<RunLabels>;
  }

  /** The ranks on some nodes of a run. */
  ranks(id: string, { nodes }: RankRequest): Promise<RankRow[]> {
    return this.getJson(runRoute(id, 'ranks'), { nodes: nodes.join() });
  }

  /** A page of a run's logs. */
  logs(id: string, { rank, first, count, search }: LogRequest): Promise<LogPage> {
    return this.getJson(runRoute(id, 'logs'), { rank, first, count, search });
  }

  /** The URL of a rank's log file. */
  downloadUrl(id: string, rank: number): string {
    return this.fileUrl(runRoute(id, 'logs', rank, 'download'));
  }

  /** The URL of all metrics of a run as CSV. */
  metricsUrl(id: string): string {
    return this.fileUrl(runRoute(id, 'metrics.csv'));
  }

  /** The URL of a rank's trace. */
  traceUrl(id: string, rank: number): string {
    return this.fileUrl(runRoute(id, 'traces', rank));
  }

  /** Addresses of TensorBoard for the folders of a run, by their places. */
  async tensorBoards(id: string): Promise<ReadonlyMap<number, string>> {
    const places = await this.getJson<number[]>(runRoute(id, 'tensorboard'));
    return new Map(
      places.map(place => [place, this.fileUrl(`${runRoute(id, 'tensorboard', place)}/`)])
    );
  }

  /** Stop a run; with `force`, kill it without writing results back. */
  async stop(id: string, force: boolean): Promise<void> {
    const body: StopRequest = { force };
    await this.send(runRoute(id, 'stop'), { method: 'POST', body: JSON.stringify(body) });
  }

  /** Delete the folder of a finished run. */
  async remove(id: string): Promise<void> {
    await this.send(runRoute(id), { method: 'DELETE' });
  }

  /** Receive updates once a second while the page is visible, until the stream is disposed of. */
  listen(
    onUpdate: (update: Update) => void,
    onConnection: (state: ServerConnectionState) => void = () => undefined
  ): Stream<Update> {
    const known = new Set<string>();
    let hasUpdate = false;
    let changes = 0;
    const stream = new Stream<Update>(this.settings, 'stream', {
      onMessage: (update, first) => {
        hasUpdate = true;
        onUpdate(withRemovedRuns(update, first, known));
      },
      onConnection: state => {
        const change = (changes += 1);
        if (state === 'live' || hasUpdate) {
          onConnection(state);
          return;
        }
        void this.connectionFailure().then(failure => {
          // The stream may have connected or been disposed of in the meantime.
          if (change === changes && !stream.isDisposed) {
            onConnection(failure);
          }
        });
      }
    });
    return stream;
  }

  /** Find out whether the extension is missing or the server does not respond. */
  private async connectionFailure(): Promise<ServerConnectionState> {
    try {
      await this.status();
      return 'lost';
    } catch (reason) {
      return reason instanceof ServerError && reason.isMissing ? 'missing' : 'lost';
    }
  }

  /** The URL of a file.  A browser sends no headers with it, so the token may be part of the URL. */
  private fileUrl(route: string): string {
    const { token, appendToken } = this.settings;
    return address(this.settings, route, token && appendToken ? { token } : {});
  }

  private async getJson<Answer>(route: string, query: Query = {}): Promise<Answer> {
    const response = await this.send(route, {}, query);
    return (await response.json()) as Answer;
  }

  private async send(
    route: string,
    init: RequestInit,
    query: Query = {}
  ): Promise<Response> {
    const url = address(this.settings, route, query);
    let response: Response;
    try {
      response = await ServerConnection.makeRequest(url, init, this.settings);
    } catch (reason) {
      throw new ServerError(0, `The server does not answer: ${String(reason)}`);
    }
    if (!response.ok) {
      throw await ServerError.of(response);
    }
    return response;
  }
}
