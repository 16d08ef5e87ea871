import { make } from './dom';

/** Download what `url` refers to as a file called `name`. */
export function downloadUrl(url: string, name: string): void {
  make('a', '', { href: url, download: name }).click();
}

/** Download `content` as a file called `name`. */
export function downloadText(content: BlobPart, name: string, type = 'text/plain'): void {
  const url = URL.createObjectURL(new Blob([content], { type }));
  downloadUrl(url, name);
  URL.revokeObjectURL(url);
}

/** The name of a file for something called `title`. */
export function fileName(title: string, extension: string): string {
  return `${title.replace(/[^\w.-]+/g, '-')}.${extension}`;
}
