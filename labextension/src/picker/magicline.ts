/** The `%%mgpu` line of a cell's source. */

const MAGIC = /^%%mgpu(?=\s|$)/;

/** Tell whether the cell is run by `%%mgpu`. */
export function hasLine(source: string): boolean {
  return MAGIC.test(source);
}

/** The cell's `%%mgpu` line, or nothing. */
export function lineOf(source: string): string {
  return hasLine(source) ? source.split('\n', 1)[0].trimEnd() : '';
}

/** Put `line` first; it replaces a `%%mgpu` line that is there. */
export function withLine(source: string, line: string): string {
  const end = source.indexOf('\n');
  const rest = !hasLine(source) ? source : end < 0 ? '' : source.slice(end + 1);
  return rest ? `${line}\n${rest}` : line;
}
