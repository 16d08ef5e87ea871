// The entry point of RunPanel (nbmgpu/ui/panel.py): the run view with data from a widget's traits.
import 'uplot/dist/uPlot.min.css';
import '../../style/frame.css';
import '../../style/view.css';
import {
  mountRunView,
  pageTranslations,
  type CsvPage,
  type CsvRequest,
  type CurveLine,
  type CurveRequest,
  type IRunSource,
  type LogPage,
  type LogRequest,
  type PartName,
  type RankRequest,
  type RankRow,
  type TracePart,
  type TraceRequest
} from '../view';
import { tensorBoards } from './pageserver';

/** The part of an anywidget model that is used here. */
interface IModel {
  get(trait: string): unknown;
  send(message: object): void;
  on(event: string, handler: (...values: never[]) => void): void;
  off(event: string, handler: (...values: never[]) => void): void;
}

/** The trait of a part. */
const traitName = (part: PartName) => `part_${part}`;

/** Milliseconds to wait for a reply of the kernel, which may be busy or dead. */
const TIMEOUT = 15_000;

/** A reply of the kernel. */
interface IAnswer {
  kind: string;
  id: number;
  answer: unknown;
}

class ModelSource implements IRunSource {
  private choices: Record<string, unknown>;
  private waiting = new Map<number, (answer: unknown) => void>();
  private timers = new Set<number>();
  /** Random start, because other views of the same model send requests as well. */
  private lastId = Math.floor(Math.random() * 1e9);

  constructor(private model: IModel) {
    this.choices = { ...(model.get('choices') as object) };
    model.on('msg:custom', this.receive);
  }

  get = (<Name extends PartName>(part: Name) =>
    this.model.get(traitName(part))) as IRunSource['get'];

  onChange(parts: PartName[], callback: () => void): () => void {
    const events = parts.map(part => `change:${traitName(part)}`);
    events.forEach(event => this.model.on(event, callback));
    return () => events.forEach(event => this.model.off(event, callback));
  }

  stop(force: boolean): void {
    this.model.send({ kind: 'stop', force });
  }

  logs(request: LogRequest): Promise<LogPage> {
    return this.ask({ logs: request }) as Promise<LogPage>;
  }

  ranks(request: RankRequest): Promise<RankRow[]> {
    return this.ask({ ranks: request }) as Promise<RankRow[]>;
  }

  detail(request: CurveRequest): Promise<CurveLine | null> {
    return this.ask({ curve: request }) as Promise<CurveLine | null>;
  }

  metricRows(request: CsvRequest): Promise<CsvPage> {
    return this.ask({ csv: request }) as Promise<CsvPage>;
  }

  tracePart(request: TraceRequest): Promise<TracePart> {
    return this.ask({ trace: request }) as Promise<TracePart>;
  }

  tensorBoards(): Promise<ReadonlyMap<number, string>> {
    return tensorBoards(this.get('about')?.id ?? '');
  }

  // Traits set in the browser wait until the kernel is idle, which it is not while a cell
  // runs; messages do not.
  readonly memory = {
    get: (key: string) => this.choices[key],
    set: (key: string, value: unknown) => {
      this.choices[key] = value;
      this.model.send({ kind: 'choose', key, value });
    }
  };

  dispose(): void {
    this.model.off('msg:custom', this.receive);
    this.timers.forEach(timer => clearTimeout(timer));
    this.waiting.clear();
  }

  private ask(question: object): Promise<unknown> {
    const id = (this.lastId += 1);
    return new Promise((resolve, reject) => {
      const timer = window.setTimeout(() => {
        this.timers.delete(timer);
        this.waiting.delete(id);
        reject(new Error('the kernel does not respond'));
      }, TIMEOUT);
      this.timers.add(timer);
      this.waiting.set(id, answer => {
        clearTimeout(timer);
        this.timers.delete(timer);
        resolve(answer);
      });
      this.model.send({ kind: 'ask', id, ...question });
    });
  }

  private receive = ({ kind, id, answer }: IAnswer) => {
    if (kind === 'answer') {
      this.waiting.get(id)?.(answer);
      this.waiting.delete(id);
    }
  };
}

function render({ model, el }: { model: IModel; el: HTMLElement }): () => void {
  const source = new ModelSource(model);
  const view = mountRunView(el, source, pageTranslations());
  return () => {
    view.dispose();
    source.dispose();
  };
}

export default { render };
