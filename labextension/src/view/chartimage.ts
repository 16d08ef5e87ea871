import { downloadUrl, fileName } from './download';

/** Download a chart's canvas as a PNG with its title and the background of the page. */
export function downloadImage(canvas: HTMLCanvasElement, title: string): void {
  const scale = window.devicePixelRatio || 1;
  const margin = 24 * scale;
  const image = document.createElement('canvas');
  image.width = canvas.width;
  image.height = canvas.height + margin;
  const context = image.getContext('2d');
  if (!context) {
    return;
  }
  const { backgroundColor, color } = pageColors(canvas);
  context.fillStyle = backgroundColor;
  context.fillRect(0, 0, image.width, image.height);
  context.drawImage(canvas, 0, margin);
  context.fillStyle = color;
  context.font = `${13 * scale}px system-ui, sans-serif`;
  context.fillText(title, 8 * scale, 16 * scale);
  downloadUrl(image.toDataURL('image/png'), fileName(title, 'png'));
}

/** The text color of `node`, and the first background behind it that is not transparent. */
function pageColors(node: HTMLElement): { backgroundColor: string; color: string } {
  const { color } = getComputedStyle(node);
  for (let at: HTMLElement | null = node; at; at = at.parentElement) {
    const { backgroundColor } = getComputedStyle(at);
    if (/^rgb\(|^#/.test(backgroundColor)) {
      return { backgroundColor, color };
    }
  }
  return { backgroundColor: 'white', color };
}
