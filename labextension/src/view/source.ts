// The data source of the run view: a widget's traits in a notebook, the server in JupyterLab.
import type {
  CsvPage,
  CsvRequest,
  CurveLine,
  CurveRequest,
  LogPage,
  LogRequest,
  Parts,
  RankRequest,
  RankRow,
  TracePart,
  TraceRequest
} from '../generated/report';

export type {
  CsvPage,
  CsvRequest,
  CurveLine,
  CurveRequest,
  LogPage,
  LogRequest,
  Parts,
  RankRequest,
  RankRow,
  TracePart,
  TraceRequest
} from '../generated/report';

/**
 * The built-in parts of a run's snapshot; each arrives when it has changed.  Views of other packages
 * have further parts.
 */
export type PartName = keyof Parts;

/** The data and actions of one run. */
export interface IRunSource {
  /** The newest state of a part; undefined until it has arrived. */
  get<Name extends PartName>(part: Name): Parts[Name] | undefined;

  /** Call `callback` when any of `parts` changes.  Returns a function that unsubscribes. */
  onChange(parts: PartName[], callback: () => void): () => void;

  /** Stop the run; with `force`, kill it without writing results back. */
  stop(force: boolean): void;

  /** A page of the logs. */
  logs(request: LogRequest): Promise<LogPage>;

  /** The ranks on some nodes of a run on several machines. */
  ranks(request: RankRequest): Promise<RankRow[]>;

  /** A range of a metric at a higher resolution; optional. */
  detail?(request: CurveRequest): Promise<CurveLine | null>;

  /** The URL of all metrics as CSV; optional. */
  metricsUrl?(): string;

  /** Some rows of the metrics as CSV, from which the view assembles the file; optional. */
  metricRows?(request: CsvRequest): Promise<CsvPage>;

  /** The URL of a rank's trace; optional. */
  traceUrl?(rank: number): string;

  /** A part of a trace, from which the view assembles the file; optional. */
  tracePart?(request: TraceRequest): Promise<TracePart>;

  /** The URL of a rank's log; without it, the view assembles the log from its pages. */
  downloadUrl?(rank: number): string | null;

  /** Addresses of TensorBoard, by the place of the folder that it shows; optional. */
  tensorBoards?(): Promise<ReadonlyMap<number, string>>;

  /** Open the run's folder; without it, the view copies the path. */
  openFolder?(): void;

  /** Persistent storage of the choices in the view; optional. */
  readonly memory?: IMemory;
}

/** Stores choices: the open log, smoothing, the scale. */
export interface IMemory {
  get(key: string): unknown;
  set(key: string, value: unknown): void;
}

/** Translates the texts of the view; JupyterLab's `TranslationBundle` implements it. */
export interface ITranslate {
  __(text: string, ...values: (string | number)[]): string;
  /** The singular or the plural, by `count`, which is `%1`. */
  _n(
    singular: string,
    plural: string,
    count: number,
    ...values: (string | number)[]
  ): string;
}

/** Returns all texts untranslated, with `%1`, `%2`, ... replaced. */
export const english: ITranslate = {
  __: (text, ...values) =>
    text.replace(/%(\d+)/g, (_, place) => String(values[place - 1])),
  _n: (singular, plural, count, ...values) =>
    english.__(count === 1 ? singular : plural, count, ...values)
};

/** Where JupyterLab's extension keeps the translations for the widgets in its page. */
const PAGE = globalThis as { nbmgpuTranslations?: ITranslate };

/** Translate the widgets in this page. */
export function translatePage(trans: ITranslate): void {
  PAGE.nbmgpuTranslations = trans;
}

/** The translations of this page: English, except in JupyterLab. */
export function pageTranslations(): ITranslate {
  return PAGE.nbmgpuTranslations ?? english;
}
