/** The route of a run, or of a part of it. */
export function runRoute(id: string, ...parts: (string | number)[]): string {
  return ['runs', id, ...parts].map(part => encodeURIComponent(part)).join('/');
}
