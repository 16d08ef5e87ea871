import type { TracePart, TraceRequest } from '../generated/report';
import { downloadText, downloadUrl } from './download';
import type { IRunSource } from './source';

/** Milliseconds between two parts: Jupyter drops what a kernel sends beyond 1 MB per second. */
const PAUSE = 400;

/** Whether the source has a way to download traces. */
export function hasTraces(source: IRunSource): boolean {
  return source.traceUrl !== undefined || source.tracePart !== undefined;
}

/** Download the trace of a rank; `onProgress` receives the share that has arrived. */
export async function downloadTrace(
  source: IRunSource,
  rank: number,
  runId: string,
  onProgress: (share: number) => void
): Promise<void> {
  const name = `${runId || 'run'}-trace_rank${rank}.json.gz`;
  if (source.traceUrl) {
    downloadUrl(source.traceUrl(rank), name);
  } else if (source.tracePart) {
    const parts = await allParts(source.tracePart.bind(source), rank, PAUSE, onProgress);
    downloadText(new Blob(parts), name, 'application/gzip');
  }
}

/** Collect all parts of a trace. */
export async function allParts(
  request: (request: TraceRequest) => Promise<TracePart>,
  rank: number,
  pause: number,
  onProgress: (share: number) => void
): Promise<Uint8Array<ArrayBuffer>[]> {
  const parts: Uint8Array<ArrayBuffer>[] = [];
  for (let offset = 0; ;) {
    const { content, end, size } = await request({ rank, offset });
    if (!content) {
      throw new Error('the trace has been removed');
    }
    parts.push(Uint8Array.from(atob(content), letter => letter.charCodeAt(0)));
    onProgress(end / size);
    if (end >= size) {
      return parts;
    }
    offset = end;
    await new Promise(resolve => setTimeout(resolve, pause));
  }
}
