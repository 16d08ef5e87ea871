import type { ServerConnection } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';

import { CloseCode, type Visibility } from '../generated/server';
import { streamAddress } from './address';

/** How a stream stands: the server speaks, or is silent for now. */
export type StreamState = 'live' | 'lost';

/** Who listens to a stream. */
export interface IListener<Message> {
  /** Hear a word.  `first` is true for the first one after each time that the stream came up. */
  onMessage(word: Message, first: boolean): void;
  /** Learn that the stream has come up, or has gone down and will be tried again. */
  onConnection?(link: StreamState): void;
  /** Learn that there is nothing more to come, for a code of `CloseCode`. */
  onEnd?(code: number, reason: string): void;
}

/** Milliseconds before the first try to come back, and at most between two. */
const PATIENCE = { first: 500, most: 30_000 };

/** A websocket that comes back after it was lost, and rests while nobody looks. */
export class Stream<Message> implements IDisposable {
  constructor(
    private readonly settings: ServerConnection.ISettings,
    private readonly route: string,
    private readonly listener: IListener<Message>
  ) {
    document.addEventListener('visibilitychange', this.onVisibility);
    window.addEventListener('online', this.retry);
    this.connect();
  }

  /** Whether it was disposed of, or has come to its end. */
  get isDisposed(): boolean {
    return this.disposed;
  }

  /** Say whether what the stream feeds can be seen.  A hidden page is never looked at. */
  setVisible(visible: boolean): void {
    this.wanted = visible;
    this.onVisibility();
  }

  dispose(): void {
    if (this.disposed) {
      return;
    }
    this.disposed = true;
    clearTimeout(this.timer);
    document.removeEventListener('visibilitychange', this.onVisibility);
    window.removeEventListener('online', this.retry);
    this.socket?.close();
    this.socket = null;
  }

  private get visible(): boolean {
    return this.wanted && !document.hidden;
  }

  private connect(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    const url = streamAddress(this.settings, this.route);
    const socket = new this.settings.WebSocket(url);
    let first = true;
    this.socket = socket;
    socket.onopen = () => {
      this.failures = 0;
      this.told = true; // what a stream takes for granted when it comes up
      this.sendVisibility();
      this.listener.onConnection?.('live');
    };
    socket.onmessage = event => {
      if (socket === this.socket) {
        const isFirst = first;
        first = false;
        this.listener.onMessage(JSON.parse(event.data as string) as Message, isFirst);
      }
    };
    socket.onclose = event => {
      if (socket === this.socket) {
        this.onClose(event.code, event.reason);
      }
    };
  }

  private onClose(code: number, reason: string): void {
    this.socket = null;
    if (code === CloseCode.OVER || code === CloseCode.GONE) {
      this.dispose();
      this.listener.onEnd?.(code, reason);
      return;
    }
    const wait = Math.min(PATIENCE.first * 2 ** this.failures, PATIENCE.most);
    this.failures += 1;
    // Not all pages at the same moment: a server that comes back has enough to do.
    this.timer = setTimeout(this.retry, wait * (0.75 + Math.random() / 2));
    this.listener.onConnection?.('lost');
  }

  /** Come back now, if that is still to be done and somebody looks. */
  private readonly retry = (): void => {
    if (!this.disposed && !this.socket && this.visible) {
      this.connect();
    }
  };

  private readonly onVisibility = (): void => {
    this.sendVisibility();
    if (this.visible) {
      this.retry();
    }
  };

  private sendVisibility(): void {
    const { socket, visible } = this;
    if (socket?.readyState === 1 && visible !== this.told) {
      const word: Visibility = { visible };
      socket.send(JSON.stringify(word));
      this.told = visible;
    }
  }

  private disposed = false;
  private failures = 0;
  private socket: WebSocket | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private told = true;
  private wanted = true;
}
