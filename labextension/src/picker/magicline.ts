/** The `%%mgpu` line of a cell's source. */

const MAGIC = /^%%mgpu(?=\s|$)/;

/** Whether the cell has a `%%mgpu` line. */
export function hasLine(source: string): boolean {
  return MAGIC.test(source);
}

/** The cell's `%%mgpu` line, or an empty string. */
export function lineOf(source: string): string {
  return hasLine(source) ? source.split('\n', 1)[0].trimEnd() : '';
}

/** Add `line` as the first line, or replace an existing `%%mgpu` line. */
export function withLine(source: string, line: string): string {
  const end = source.indexOf('\n');
  const rest = !hasLine(source) ? source : end < 0 ? '' : source.slice(end + 1);
  return rest ? `${line}\n${rest}` : line;
}
