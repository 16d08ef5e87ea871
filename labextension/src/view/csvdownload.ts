import type { CsvPage, CsvRequest } from '../generated/report';
import { button, make, setAttribute, setText } from './dom';
import { downloadText, downloadUrl } from './download';
import { errorText } from './errors';
import type { IRunSource, ITranslate } from './source';

/** Milliseconds between two pages: Jupyter drops what a kernel sends beyond 1 MB per second. */
const PAUSE = 400;

/** A button that downloads all points of all metrics, and a line that says why it cannot. */
export class CsvDownload {
  readonly button: HTMLButtonElement;
  readonly message = make('div', 'more', { role: 'status' });
  private isBusy = false;

  constructor(
    private readonly source: IRunSource,
    private readonly trans: ITranslate,
    private readonly runId: () => string
  ) {
    const label = trans.__('Download all metrics as CSV');
    this.button = button('toggle', 'CSV', () => void this.download());
    setAttribute(this.button, 'aria-label', label);
    this.button.title = label;
    this.button.hidden = !source.metricsUrl && !source.metricRows;
    this.message.hidden = true;
  }

  private async download(): Promise<void> {
    const { source } = this;
    if (this.isBusy) {
      return;
    }
    this.isBusy = true;
    this.say('');
    try {
      const name = `${this.runId() || 'run'}-metrics.csv`;
      if (source.metricsUrl) {
        downloadUrl(source.metricsUrl(), name);
      } else if (source.metricRows) {
        const text = await allRows(source.metricRows.bind(source), PAUSE, share =>
          setText(this.button, share < 1 ? `CSV ${Math.floor(100 * share)} %` : 'CSV')
        );
        downloadText(text, name, 'text/csv');
      }
    } catch (reason) {
      this.say(this.trans.__('The metrics cannot be saved: %1', errorText(reason)));
    }
    setText(this.button, 'CSV');
    this.isBusy = false;
  }

  private say(text: string): void {
    setText(this.message, text);
    this.message.hidden = !text;
  }
}

/** Collect all pages; `onProgress` receives the share of the steps that has arrived. */
export async function allRows(
  request: (request: CsvRequest) => Promise<CsvPage>,
  pause: number,
  onProgress: (share: number) => void
): Promise<string> {
  let page = await request({ after: -1, columns: [] });
  const texts = [page.text];
  while (page.left) {
    onProgress(texts.length / (texts.length + page.left / pageRows(page)));
    await new Promise(resolve => setTimeout(resolve, pause));
    page = await request({ after: page.last, columns: page.columns });
    texts.push(page.text);
  }
  onProgress(1);
  return texts.join('');
}

/** The number of rows of a page. */
function pageRows({ text }: CsvPage): number {
  return Math.max(1, text.split('\n').length - 1);
}
