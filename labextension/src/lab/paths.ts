/** Paths on the server's machine, and what JupyterLab calls them. */

/** The path by which JupyterLab knows a file or folder, or null when it lies outside `root`. */
export function pathBelow(root: string, path: string): string | null {
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
