// Colours for canvases, which know no CSS variables, in whatever theme the page has.

/** The colours of what is not data. */
export interface IPalette {
  text: string;
  muted: string;
  faint: string;
}

/** Colours of lines, that stand on light and dark: the line, those beside it, one to notice. */
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

/** Read the colours that `node`, which is in the page, has now. */
export function paletteOf(node: HTMLElement): IPalette {
  const probe = document.createElement('span');
  node.append(probe);
  const colour = (name: string) => {
    probe.style.color = `var(--nbmgpu-${name})`;
    return getComputedStyle(probe).color;
  };
  const palette = {
    text: colour('text'),
    muted: colour('muted'),
    faint: colour('faint')
  };
  probe.remove();
  return palette;
}

/** Call `callback` when the page's theme changes; returns what ends this. */
export function onThemeChange(callback: () => void): () => void {
  const dark = window.matchMedia('(prefers-color-scheme: dark)');
  // The style sheets of a theme arrive after the page has announced it.
  let timer = 0;
  const later = () => {
    clearTimeout(timer);
    timer = window.setTimeout(callback, 150);
  };
  const observer = new MutationObserver(later);
  const attributeFilter = [
    'class',
    'data-jp-theme-name',
    'data-jp-theme-light',
    'data-theme'
  ];
  for (const node of [document.documentElement, document.body]) {
    observer.observe(node, { attributes: true, attributeFilter });
  }
  dark.addEventListener('change', later);
  return () => {
    clearTimeout(timer);
    observer.disconnect();
    dark.removeEventListener('change', later);
  };
}
