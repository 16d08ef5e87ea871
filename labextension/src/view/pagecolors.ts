import { paletteOf } from './theme';

/** The colors of a picture of a chart, without transparency, as `#rrggbb`. */
export interface IPageColors {
  readonly background: string;
  readonly text: string;
  readonly muted: string;
  readonly grid: string;
}

/** The colors of the page around `node`, as they look on its background. */
export function pageColors(node: HTMLElement): IPageColors {
  const background = backgroundOf(node);
  const { muted, faint } = paletteOf(node);
  return {
    background: mixed(background),
    text: mixed(background, getComputedStyle(node).color),
    muted: mixed(background, muted),
    grid: mixed(background, faint)
  };
}

/** The first background behind `node` that is not transparent. */
function backgroundOf(node: HTMLElement): string {
  for (let at: HTMLElement | null = node; at; at = at.parentElement) {
    const { backgroundColor } = getComputedStyle(at);
    if (/^rgb\(|^#/.test(backgroundColor)) {
      return backgroundColor;
    }
  }
  return 'white';
}

/** What the browser shows where these colors are on top of each other. */
function mixed(...colors: string[]): string {
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = 1;
  const context = canvas.getContext('2d');
  if (!context) {
    return colors[colors.length - 1];
  }
  for (const color of colors) {
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
  }
  const [red, green, blue] = context.getImageData(0, 0, 1, 1).data;
  return `#${[red, green, blue].map(part => part.toString(16).padStart(2, '0')).join('')}`;
}
