import type { ICodeCellModel } from '@jupyterlab/cells';
import type { TranslationBundle } from '@jupyterlab/translation';

import type { LogPage, LogRequest } from '../generated/report';
import type { RunSummary } from '../generated/server';
import { panelRunOf } from './paneloutputs';

/** Maximum number of missing lines that are added to an output. */
const MAX_LINES = 1000;

type Outputs = ICodeCellModel['outputs'];
type IOutput = ReturnType<Outputs['toJSON']>[number];

/** Text that was written to stdout or stderr. */
interface IStream {
  [key: string]: string | string[];
  output_type: 'stream';
  name: 'stdout' | 'stderr';
  text: string | string[];
}

/** Say in the output of a cell that later output is missing, unless it says so already. */
export function addReloadNotice(
  outputs: Outputs,
  run: string,
  trans: TranslationBundle
): void {
  for (let index = 0; index < outputs.length; index++) {
    if (noticeRunOf(outputs.get(index).metadata['nbmgpu'])) {
      return;
    }
  }
  const text = trans.__(
    'This page was loaded during the run. New output is in the log of rank 0 and appears here when the run ends.'
  );
  outputs.add({
    output_type: 'display_data',
    data: { 'text/plain': text },
    metadata: { nbmgpu: { reloaded: run } }
  });
}

/** Read those lines of rank 0's log that a cell's output does not contain. */
export async function missingOutput(
  outputs: Outputs,
  logs: (request: LogRequest) => Promise<LogPage>,
  trans: TranslationBundle
): Promise<IStream[]> {
  const shown = outputs.toJSON().filter(isStream).map(textOf).join('').split('\n');
  const partial = shown[shown.length - 1];
  const request = { rank: 0, first: shown.length - 1, count: MAX_LINES, search: '' };
  let page = await logs(request);
  const omitted = Math.max(page.total - request.first - MAX_LINES, 0);
  if (omitted) {
    page = await logs({ ...request, first: page.total - MAX_LINES });
  }
  const streams: IStream[] = [];
  const add = (name: IStream['name'], text: string): void => {
    const last = streams[streams.length - 1];
    if (last?.name === name) {
      last.text = `${textOf(last)}${text}\n`;
    } else {
      streams.push({ output_type: 'stream', name, text: `${text}\n` });
    }
  };
  if (omitted) {
    add('stdout', trans.__('... %1 more lines in the log of rank 0 ...', omitted));
  }
  page.lines.forEach(({ text, stderr }, index) => {
    const isPartial = !omitted && index === 0 && text.startsWith(partial);
    add(stderr ? 'stderr' : 'stdout', isPartial ? text.slice(partial.length) : text);
  });
  return streams;
}

/** The outputs of a cell whose run is over: with its summary and missing output, without notice. */
export function outputsAtEnd(
  outputs: IOutput[],
  run: string,
  { html, text }: RunSummary,
  missing: readonly IOutput[]
): IOutput[] {
  const summary: IOutput = {
    output_type: 'display_data',
    data: { 'text/html': html, 'text/plain': text },
    metadata: {}
  };
  const kept = outputs
    .filter(output => noticeRunOf(metadataOf(output)) !== run)
    .map(output => (panelRunOf(output) === run ? summary : output));
  return [...kept, ...missing];
}

function isStream(output: IOutput): output is IOutput & IStream {
  return output.output_type === 'stream';
}

function textOf({ text }: IStream): string {
  return typeof text === 'string' ? text : text.join('');
}

function metadataOf(output: IOutput): unknown {
  return (output.metadata as Record<string, unknown> | undefined)?.['nbmgpu'];
}

/** The run that a notice is about, from its metadata. */
function noticeRunOf(metadata: unknown): string {
  const run =
    metadata && typeof metadata === 'object' && 'reloaded' in metadata
      ? metadata.reloaded
      : '';
  return typeof run === 'string' ? run : '';
}
