import { CloseCode } from '../generated/server';
import type {
  CurveLine,
  CurveRequest,
  IRunSource,
  LogPage,
  LogRequest,
  PartName,
  Parts,
  RankRequest,
  RankRow
} from '../view/source';
import type { RunsServer } from './runs';
import { Stream, type StreamState } from './stream';

/** The callbacks of a source. */
export interface ISourceEvents {
  /** A request of the view failed. */
  onError?(reason: Error): void;
  /** The connection was lost or restored. */
  onConnection?(state: StreamState): void;
  /** The run's folder does not exist; `reason` is a message for people. */
  onGone?(reason: string): void;
}

/** A run whose parts come from the server, so that it does not depend on the kernel. */
export class ServerRunSource implements IRunSource {
  constructor(
    private readonly server: RunsServer,
    readonly runId: string,
    private readonly events: ISourceEvents = {}
  ) {
    const route = `runs/${encodeURIComponent(runId)}/stream`;
    this.stream = new Stream<Partial<Parts>>(server.settings, route, {
      onMessage: parts => this.update(parts),
      onConnection: state => events.onConnection?.(state),
      onEnd: (code, reason) => {
        if (code === CloseCode.GONE) {
          events.onGone?.(reason);
        }
      }
    });
  }

  get<Name extends PartName>(part: Name): Parts[Name] | undefined {
    return this.parts[part];
  }

  onChange(parts: PartName[], callback: () => void): () => void {
    const onUpdate = (changed: Partial<Parts>) => {
      if (parts.some(part => part in changed)) {
        callback();
      }
    };
    this.callbacks.add(onUpdate);
    return () => void this.callbacks.delete(onUpdate);
  }

  stop(force: boolean): void {
    this.server
      .stop(this.runId, force)
      .catch((reason: Error) => this.events.onError?.(reason));
  }

  logs(request: LogRequest): Promise<LogPage> {
    return this.server.logs(this.runId, request);
  }

  ranks(request: RankRequest): Promise<RankRow[]> {
    return this.server.ranks(this.runId, request);
  }

  detail(request: CurveRequest): Promise<CurveLine | null> {
    return this.server.curve(this.runId, request);
  }

  metricsUrl(): string {
    return this.server.metricsUrl(this.runId);
  }

  traceUrl(rank: number): string {
    return this.server.traceUrl(this.runId, rank);
  }

  tensorBoards(): Promise<ReadonlyMap<number, string>> {
    return this.server.tensorBoards(this.runId);
  }

  downloadUrl(rank: number): string {
    return this.server.downloadUrl(this.runId, rank);
  }

  /** Set whether the view is visible; nothing is sent while it is not. */
  setVisible(visible: boolean): void {
    this.stream.setVisible(visible);
  }

  dispose(): void {
    this.stream.dispose();
    this.callbacks.clear();
  }

  private update(parts: Partial<Parts>): void {
    Object.assign(this.parts, parts);
    this.callbacks.forEach(callback => callback(parts));
  }

  private readonly callbacks = new Set<(changed: Partial<Parts>) => void>();
  private readonly parts: Partial<Parts> = {};
  private readonly stream: Stream<Partial<Parts>>;
}
