// Colors of the current theme for canvases, which do not support CSS variables.

/** The colors of text and grid. */
export interface IPalette {
  text: string;
  muted: string;
  faint: string;
}

/** Line colors for light and dark themes: the first line, further lines, the highlighted line. */
export const LINE = '#3b82f6';
export const OTHER_LINES = [
  '#8b93a1',
  '#0d9488',
  '#a855f7',
  '#db5a8b',
  '#65a30d',
  '#06a3c4',
  '#a16b4f',
  '#6366f1'
];
export const HIGHLIGHT = '#e08b00';

/** Read the current colors of `node`, which must be attached. */
export function paletteOf(node: HTMLElement): IPalette {
  const probe = document.createElement('span');
  node.append(probe);
  const color = (name: string) => {
    probe.style.color = `var(--nbmgpu-${name})`;
    return getComputedStyle(probe).color;
  };
  const palette = {
    text: color('text'),
    muted: color('muted'),
    faint: color('faint')
  };
  probe.remove();
  return palette;
}

/** Call `callback` when the page's theme changes.  Returns a function that unsubscribes. */
export function onThemeChange(callback: () => void): () => void {
  const dark = window.matchMedia('(prefers-color-scheme: dark)');
  // The style sheets of a theme load after the attributes change.
  let timer = 0;
  const onChange = () => {
    clearTimeout(timer);
    timer = window.setTimeout(callback, 150);
  };
  const observer = new MutationObserver(onChange);
  const attributeFilter = [
    'class',
    'data-jp-theme-name',
    'data-jp-theme-light',
    'data-theme'
  ];
  for (const node of [document.documentElement, document.body]) {
    observer.observe(node, { attributes: true, attributeFilter });
  }
  dark.addEventListener('change', onChange);
  return () => {
    clearTimeout(timer);
    observer.disconnect();
    dark.removeEventListener('change', onChange);
  };
}
