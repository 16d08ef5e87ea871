import { ServerConnection } from '@jupyterlab/services';

import type { PickerState } from '../generated/advisor';
import type {
  CurveLine,
  CurveRequest,
  LogPage,
  LogRequest,
  Parts
} from '../generated/report';
import type {
  Catalogue,
  Update,
  PickRequest,
  RunList,
  RunSummary,
  ServerStatus,
  StopRequest
} from '../generated/server';
import { address, runRoute, type Query } from './address';
import { withRemovedRuns } from './updates';
import { ServerError } from './errors';
import { Stream, type StreamState } from './stream';

/** How the server stands; `missing` is one that has no part of nbmgpu. */
export type ServerConnectionState = StreamState | 'missing';

/** All that nbmgpu's part of the server can be asked for. */
export class RunsServer {
  constructor(readonly settings = ServerConnection.makeSettings()) {}

  /** The machine at this moment. */
  status(): Promise<ServerStatus> {
    return this.ask('status');
  }

  /** What one can choose on the first line of a cell. */
  catalogue(): Promise<Catalogue> {
    return this.ask('catalogue');
  }

  /** What a picker shows that knows no model, for a cell's line and what was set. */
  async pick(request: PickRequest): Promise<PickerState> {
    const init = { method: 'POST', body: JSON.stringify(request) };
    return (await this.send('pick', init)).json() as Promise<PickerState>;
  }

  /** The newest runs, or the newest of those before the run `before`. */
  runs(before = '', limit = 200): Promise<RunList> {
    return this.ask('runs', { before, limit });
  }

  /** All there is to show of a run. */
  run(id: string): Promise<Parts> {
    return this.ask(runRoute(id));
  }

  /** What stays of a run that is over in its notebook. */
  summary(id: string): Promise<RunSummary> {
    return this.ask(runRoute(id, 'summary'));
  }

  /** A stretch of one of a run's metrics in more detail; null where there is none. */
  curve(id: string, { name, first, last }: CurveRequest): Promise<CurveLine | null> {
    return this.ask(runRoute(id, 'curve'), { name, first, last });
  }

  /** A page of a run's logs. */
  logs(id: string, { rank, first, count, search }: LogRequest): Promise<LogPage> {
    return this.ask(runRoute(id, 'logs'), { rank, first, count, search });
  }

  /** Where a rank's whole log can be downloaded. */
  downloadUrl(id: string, rank: number): string {
    const { token, appendToken } = this.settings;
    const query: Query = token && appendToken ? { token } : {};
    return address(this.settings, runRoute(id, 'logs', rank, 'download'), query);
  }

  /** Ask a run to end; with `force`, at once and without its results. */
  async stop(id: string, force: boolean): Promise<void> {
    const body: StopRequest = { force };
    await this.send(runRoute(id, 'stop'), { method: 'POST', body: JSON.stringify(body) });
  }

  /** Remove the folder of a run that is over. */
  async remove(id: string): Promise<void> {
    await this.send(runRoute(id), { method: 'DELETE' });
  }

  /** Hear what changes, once a second while somebody looks, until what it returns is disposed of. */
  listen(
    onUpdate: (news: Update) => void,
    onConnection: (link: ServerConnectionState) => void = () => undefined
  ): Stream<Update> {
    const known = new Set<string>();
    let heard = false;
    let turn = 0;
    const stream = new Stream<Update>(this.settings, 'stream', {
      onMessage: (word, first) => {
        heard = true;
        onUpdate(withRemovedRuns(word, first, known));
      },
      onConnection: link => {
        const asked = (turn += 1);
        if (link === 'live' || heard) {
          onConnection(link);
          return;
        }
        void this.connectionFailure().then(why => {
          // Meanwhile the stream may have come up, or nobody listens any more.
          if (asked === turn && !stream.isDisposed) {
            onConnection(why);
          }
        });
      }
    });
    return stream;
  }

  /** Tell a server that has no part of nbmgpu from one that does not answer. */
  private async connectionFailure(): Promise<ServerConnectionState> {
    try {
      await this.status();
      return 'lost';
    } catch (reason) {
      return reason instanceof ServerError && reason.isMissing ? 'missing' : 'lost';
    }
  }

  private async ask<Answer>(route: string, query: Query = {}): Promise<Answer> {
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
