import { URLExt } from '@jupyterlab/coreutils';
import type { ServerConnection } from '@jupyterlab/services';

const API = 'nbmgpu/api';

/** Query parameters, such as `{ limit: 20 }`. */
export type Query = Record<string, string | number>;

/** The URL of a route, below the server's base URL. */
export function address(
  settings: ServerConnection.ISettings,
  route: string,
  query: Query = {}
): string {
  return URLExt.join(settings.baseUrl, API, route) + queryOf(query);
}

/** The URL of a stream.  A browser sends no headers with it, so the token may be part of the URL. */
export function streamAddress(
  settings: ServerConnection.ISettings,
  route: string
): string {
  const token = settings.appendToken && settings.token;
  return URLExt.join(settings.wsUrl, API, route) + queryOf(token ? { token } : {});
}

function queryOf(query: Query): string {
  const pairs = Object.entries(query).map(
    ([name, value]) => `${name}=${encodeURIComponent(value)}`
  );
  return pairs.length ? `?${pairs.join('&')}` : '';
}
