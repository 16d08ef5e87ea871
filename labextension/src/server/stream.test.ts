import { ServerConnection } from '@jupyterlab/services';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
// @ts-expect-error: it comes with jsdom, without types
import { WebSocketServer } from 'ws';

import { CloseCode } from '../generated/server';
import { Stream, type IStreamListener } from './stream';

interface IPeer {
  send(text: string): void;
  close(code?: number, reason?: string): void;
  terminate(): void;
  on(event: 'message', hear: (data: unknown) => void): void;
}

/** The other side: a real websocket server, and the messages it received. */
class Peer {
  readonly server = new WebSocketServer({ port: 0, host: '127.0.0.1' });
  readonly peers: IPeer[] = [];
  readonly addresses: string[] = [];
  readonly heard: unknown[] = [];

  constructor() {
    this.server.on('connection', (peer: IPeer, request: { url: string }) => {
      this.peers.push(peer);
      this.addresses.push(request.url);
      peer.on('message', (data: unknown) => this.heard.push(JSON.parse(String(data))));
    });
  }

  get settings(): ServerConnection.ISettings {
    const { port } = this.server.address() as { port: number };
    const wsUrl = `ws://127.0.0.1:${port}/hub/user/x/`;
    return ServerConnection.makeSettings({
      wsUrl,
      token: 'a b',
      appendToken: true,
      WebSocket
    });
  }

  async peer(place: number): Promise<IPeer> {
    await vi.waitFor(() => expect(this.peers.length).toBeGreaterThan(place), 5000);
    return this.peers[place];
  }
}

const hide = (hidden: boolean): void => {
  vi.spyOn(document, 'hidden', 'get').mockReturnValue(hidden);
  document.dispatchEvent(new Event('visibilitychange'));
};

describe('Stream', () => {
  let there: Peer;
  let stream: Stream<number> | null;
  let listener: {
    [Name in keyof Required<IStreamListener<number>>]: ReturnType<typeof vi.fn>;
  };

  beforeEach(async () => {
    there = new Peer();
    await new Promise(resolve => there.server.on('listening', resolve));
    listener = { onMessage: vi.fn(), onConnection: vi.fn(), onEnd: vi.fn() };
    stream = new Stream<number>(there.settings, 'stream', listener);
  });

  afterEach(() => {
    stream?.dispose();
    vi.restoreAllMocks();
    there.peers.forEach(peer => peer.terminate());
    there.server.close();
  });

  it('connects below the base URL, with the token', async () => {
    await there.peer(0);
    expect(there.addresses).toEqual(['/hub/user/x/nbmgpu/api/stream?token=a%20b']);
  });

  it('delivers messages and flags the first', async () => {
    const peer = await there.peer(0);
    peer.send('1');
    peer.send('2');
    await vi.waitFor(() =>
      expect(listener.onMessage.mock.calls).toEqual([
        [1, true],
        [2, false]
      ])
    );
    expect(listener.onConnection.mock.calls).toEqual([['live']]);
  });

  it('reconnects after the connection was lost', async () => {
    (await there.peer(0)).terminate();
    const peer = await there.peer(1);
    peer.send('7');
    await vi.waitFor(() => expect(listener.onMessage).toHaveBeenCalledWith(7, true));
    expect(listener.onConnection.mock.calls).toEqual([['live'], ['lost'], ['live']]);
    expect(listener.onEnd).not.toHaveBeenCalled();
  });

  it.each([CloseCode.OVER, CloseCode.GONE])('does not reconnect after %i', async code => {
    (await there.peer(0)).close(code, 'words');
    await vi.waitFor(() => expect(listener.onEnd).toHaveBeenCalledWith(code, 'words'));
    expect(stream?.isDisposed).toBe(true);
    await new Promise(resolve => setTimeout(resolve, 900));
    expect(there.peers).toHaveLength(1);
  });

  it('sends changes of visibility', async () => {
    await there.peer(0);
    await vi.waitFor(() => expect(listener.onConnection).toHaveBeenCalledWith('live'));
    hide(true);
    stream?.setVisible(false); // that is known by now
    hide(false); // but what it feeds is not in view
    stream?.setVisible(true);
    await vi.waitFor(() =>
      expect(there.heard).toEqual([{ visible: false }, { visible: true }])
    );
  });

  it('does not reconnect while hidden, and reconnects when visible', async () => {
    const peer = await there.peer(0);
    await vi.waitFor(() => expect(listener.onConnection).toHaveBeenCalledWith('live'));
    hide(true);
    peer.terminate();
    await vi.waitFor(() => expect(listener.onConnection).toHaveBeenCalledWith('lost'));
    await new Promise(resolve => setTimeout(resolve, 900));
    expect(there.peers).toHaveLength(1);
    hide(false);
    await there.peer(1);
  });

  it('delivers nothing after disposal', async () => {
    const peer = await there.peer(0);
    stream?.dispose();
    peer.send('1');
    await new Promise(resolve => setTimeout(resolve, 700));
    expect(listener.onMessage).not.toHaveBeenCalled();
    expect(there.peers).toHaveLength(1);
  });
});
