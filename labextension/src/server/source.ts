import { CloseCode } from '../generated/server';
import type {
  CurveLine,
  CurveRequest,
  IRunSource,
  LogPage,
  LogRequest,
  PartName,
  Parts
} from '../view/source';
import type { RunsServer } from './runs';
import { Stream, type StreamState } from './stream';

/** What happens to a source besides the run itself. */
export interface ISourceEvents {
  /** The server could not do what the view asked for. */
  onProblem?(reason: Error): void;
  /** The server went silent, or speaks again. */
  onConnection?(link: StreamState): void;
  /** The run's folder is not there, or no longer; `reason` says it in words. */
  onGone?(reason: string): void;
}

/** A run as the server tells it, whatever its kernel does. */
export class ServerRunSource implements IRunSource {
  constructor(
    private readonly server: RunsServer,
    readonly runId: string,
    private readonly events: ISourceEvents = {}
  ) {
    const route = `runs/${encodeURIComponent(runId)}/stream`;
    this.stream = new Stream<Partial<Parts>>(server.settings, route, {
      onMessage: parts => this.take(parts),
      onConnection: link => events.onConnection?.(link),
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

  onChange(callback: (parts: PartName[]) => void): () => void {
    this.callbacks.add(callback);
    return () => void this.callbacks.delete(callback);
  }

  stop(force: boolean): void {
    this.server
      .stop(this.runId, force)
      .catch((reason: Error) => this.events.onProblem?.(reason));
  }

  logs(request: LogRequest): Promise<LogPage> {
    return this.server.logs(this.runId, request);
  }

  detail(request: CurveRequest): Promise<CurveLine | null> {
    return this.server.curve(this.runId, request);
  }

  downloadUrl(rank: number): string {
    return this.server.downloadUrl(this.runId, rank);
  }

  /** Say whether the view can be seen; while it cannot, nothing is sent. */
  setVisible(visible: boolean): void {
    this.stream.setVisible(visible);
  }

  dispose(): void {
    this.stream.dispose();
    this.callbacks.clear();
  }

  private take(parts: Partial<Parts>): void {
    Object.assign(this.parts, parts);
    const names = Object.keys(parts) as PartName[];
    this.callbacks.forEach(callback => callback(names));
  }

  private readonly callbacks = new Set<(parts: PartName[]) => void>();
  private readonly parts: Partial<Parts> = {};
  private readonly stream: Stream<Partial<Parts>>;
}
