// Against a real server with a real run; tests/server/test_client.py starts both.
import { ServerConnection } from '@jupyterlab/services';
import { afterAll, describe, expect, it, vi } from 'vitest';

import type { Update } from '../generated/server';
import { RunsServer, ServerRunSource, type ServerConnectionState } from '.';

declare const process: { kill(pid: number, signal: string): void };

interface IEnvironment {
  VITE_NBMGPU_PORT?: string;
  VITE_NBMGPU_BASE?: string;
  VITE_NBMGPU_TOKEN?: string;
  VITE_NBMGPU_RUN?: string;
}
const { env } = import.meta as unknown as { env: IEnvironment };
const id = env.VITE_NBMGPU_RUN ?? '';
const place = `127.0.0.1:${env.VITE_NBMGPU_PORT}${env.VITE_NBMGPU_BASE}`;
const server = new RunsServer(
  ServerConnection.makeSettings({
    baseUrl: `http://${place}`,
    wsUrl: `ws://${place}`,
    token: env.VITE_NBMGPU_TOKEN ?? '',
    appendToken: true,
    WebSocket
  })
);

/** The messages received so far. */
const news: Update[] = [];
const links: ServerConnectionState[] = [];
const ear = env.VITE_NBMGPU_RUN
  ? server.listen(
      word => news.push(word),
      link => links.push(link)
    )
  : null;

describe.runIf(env.VITE_NBMGPU_RUN)('a real server', { timeout: 60_000 }, () => {
  afterAll(() => ear?.dispose());

  it('reports devices', async () => {
    const status = await server.status();
    expect(status.devices[0]).toMatchObject({ name: 'cpu', kind: 'cpu' });
    const { strategies, flags } = await server.catalogue();
    expect(strategies.map(one => one.name)).toContain('fsdp');
    expect(flags.find(flag => flag.name === '--gpus')?.short).toBe('-g');
  });

  it('lists and streams runs', async () => {
    const { runs, more } = await server.runs();
    expect([runs[0].id, more]).toEqual([id, false]);
    expect(await server.runs(id)).toEqual({ runs: [], more: false });
    await vi.waitFor(() => expect(news[0]?.runs[0].id).toBe(id), 10_000);
    expect(links).toEqual(['live']);
  });

  it('reports errors', async () => {
    await expect(server.run('nonsense')).rejects.toMatchObject({
      status: 404,
      message: "'nonsense' is not a run id.",
      isMissing: false
    });
    await expect(server.remove(id)).rejects.toMatchObject({
      status: 409,
      hint: 'Stop it first.'
    });
    const elsewhere = new RunsServer({
      ...server.settings,
      baseUrl: `${server.settings.baseUrl}elsewhere/`
    });
    await expect(elsewhere.status()).rejects.toMatchObject({ isMissing: true });
  });

  it('feeds the view of a run until its end', async () => {
    const onGone = vi.fn();
    const source = new ServerRunSource(server, id, { onGone });
    const steps = (): number => source.get('curves')?.shown[0]?.steps ?? 0;
    await vi.waitFor(() => expect(steps()).toBeGreaterThan(5), 30_000);
    const before = steps();
    await vi.waitFor(() => expect(steps()).toBeGreaterThan(before), 5000);
    const request = { rank: 0, first: 0, count: 1, search: 'EPOCH' };
    await vi.waitFor(async () => {
      const page = await source.logs(request);
      expect(page.lines[0]).toMatchObject({ rank: 0, text: 'epoch 0' });
    }, 10_000);
    const near = await source.detail({ name: 'loss', first: 1, last: 3 });
    expect(near?.steps).toBeGreaterThan(2);
    const download = await fetch(source.downloadUrl(0));
    expect(await download.text()).toMatch(/^epoch 0\n/);
    const metrics = await fetch(source.metricsUrl());
    expect(await metrics.text()).toMatch(/^step,epoch,loss.*\n1,/);

    source.stop(false);
    await vi.waitFor(() => expect(source.get('status')?.over).toBe(true), 20_000);
    expect(source.get('status')?.state).toBe('stopped');
    source.dispose();
    expect(onGone).not.toHaveBeenCalled();
    const ended = (): boolean =>
      news.some(word => word.runs.some(run => run.id === id && run.status.over));
    await vi.waitFor(() => expect(ended()).toBe(true), 10_000);
  });

  it('deletes a run, and is notified of it', async () => {
    await expect(server.remove(id)).rejects.toMatchObject({
      status: 409,
      message: `The results of run ${id} are not in its notebook yet.`,
      hint: expect.stringContaining(`%mgpu attach ${id}`)
    });
    const { runs } = await server.runs();
    process.kill(runs[0].kernel.pid, 'SIGKILL');
    await vi.waitFor(() => server.remove(id), 10_000);
    await vi.waitFor(() => expect(news.at(-1)?.gone).toEqual([id]), 10_000);
    const onGone = vi.fn();
    const source = new ServerRunSource(server, id, { onGone });
    await vi.waitFor(() => expect(onGone).toHaveBeenCalledOnce(), 10_000);
    source.dispose();
  });
});
