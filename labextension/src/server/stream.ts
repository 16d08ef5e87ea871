import type { ServerConnection } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';

import { CloseCode, type Visibility } from '../generated/server';
import { streamAddress } from './address';

/** The state of a stream: connected, or disconnected for now. */
export type StreamState = 'live' | 'lost';

/** The callbacks of a stream. */
export interface IStreamListener<Message> {
  /** A message arrived.  `first` is true for the first message after each connect. */
  onMessage(message: Message, first: boolean): void;
  /** The stream has connected, or has disconnected and will reconnect. */
  onConnection?(state: StreamState): void;
  /** The stream has ended, with a code of `CloseCode`. */
  onEnd?(code: number, reason: string): void;
}

/** Milliseconds before the first attempt to reconnect, and the maximum between two. */
const RECONNECT_DELAY = { first: 500, max: 30_000 };

/** A websocket that reconnects, and is paused while the page is hidden. */
export class Stream<Message> implements IDisposable {
  constructor(
    private readonly settings: ServerConnection.ISettings,
    private readonly route: string,
    private readonly listener: IStreamListener<Message>
  ) {
    document.addEventListener('visibilitychange', this.onVisibility);
    window.addEventListener('online', this.retry);
    this.connect();
  }

  /** Whether it was disposed of, or has ended. */
  get isDisposed(): boolean {
    return this.disposed;
  }

  /** Set whether the view of this stream is visible.  Nothing is visible on a hidden page. */
  setVisible(visible: boolean): void {
    this.shown = visible;
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
    return this.shown && !document.hidden;
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
      this.sentVisible = true; // the server's default for a new connection
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
    const wait = Math.min(
      RECONNECT_DELAY.first * 2 ** this.failures,
      RECONNECT_DELAY.max
    );
    this.failures += 1;
    // Jitter, so that not all pages reconnect at once to a restarted server.
    this.timer = setTimeout(this.retry, wait * (0.75 + Math.random() / 2));
    this.listener.onConnection?.('lost');
  }

  /** Reconnect now, if disconnected and visible. */
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
    if (socket?.readyState === 1 && visible !== this.sentVisible) {
      const message: Visibility = { visible };
      socket.send(JSON.stringify(message));
      this.sentVisible = visible;
    }
  }

  private disposed = false;
  private failures = 0;
  private socket: WebSocket | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private sentVisible = true;
  private shown = true;
}
