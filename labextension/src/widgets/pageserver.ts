import { runRoute } from '../server/route';

/** Addresses of TensorBoard for a run, from the Jupyter server of this page, if it has nbmgpu. */
export async function tensorBoards(id: string): Promise<ReadonlyMap<number, string>> {
  const base = baseUrl();
  if (base === null) {
    return new Map();
  }
  const route = `${base}nbmgpu/api/${runRoute(id, 'tensorboard')}`;
  const answer = await fetch(route, { credentials: 'same-origin' });
  const places = answer.ok ? ((await answer.json()) as number[]) : [];
  return new Map(places.map(place => [place, `${route}/${place}/`]));
}

/** The base URL of the server, in pages of JupyterLab and Notebook; null in others. */
function baseUrl(): string | null {
  const config = document.getElementById('jupyter-config-data')?.textContent;
  if (!config) {
    return null;
  }
  const { baseUrl } = JSON.parse(config) as { baseUrl?: unknown };
  return typeof baseUrl === 'string' && baseUrl.startsWith('/') ? baseUrl : null;
}
