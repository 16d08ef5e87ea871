/** Converts paths on the server's machine to JupyterLab's paths. */

/** The path relative to `root`, as JupyterLab uses it, or null for a path outside of it. */
export function relativePath(root: string, path: string): string | null {
  const base = root.replace(/\/+$/, '');
  if (!root || !path) {
    return null;
  }
  if (!path.startsWith('/')) {
    return path;
  }
  if (path === base) {
    return '';
  }
  return path.startsWith(`${base}/`) ? path.slice(base.length + 1) : null;
}
