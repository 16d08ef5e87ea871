// Where the run view gets what it shows, and whom it tells: a widget's traits in a notebook,
// the server in JupyterLab.
import type {
  CurveLine,
  CurveRequest,
  LogPage,
  LogRequest,
  Parts
} from '../generated/report';

export type {
  CurveLine,
  CurveRequest,
  LogPage,
  LogRequest,
  Parts
} from '../generated/report';

/** The parts of a run's snapshot; each arrives when it has changed. */
export type PartName = keyof Parts;

/** One run, as the view needs it. */
export interface IRunSource {
  /** The newest state of a part; undefined until it has arrived. */
  get<Name extends PartName>(part: Name): Parts[Name] | undefined;

  /** Call `callback` with the parts that have changed.  Returns what ends this. */
  onChange(callback: (parts: PartName[]) => void): () => void;

  /** Stop the run so that what was trained comes back; with `force`, at once and without it. */
  stop(force: boolean): void;

  /** A page of the logs. */
  logs(request: LogRequest): Promise<LogPage>;

  /** A stretch of a metric in more detail; without it, a zoomed curve has the points it had. */
  detail?(request: CurveRequest): Promise<CurveLine | null>;

  /** Where a rank's whole log can be downloaded; without it, the view puts it together. */
  downloadUrl?(rank: number): string | null;

  /** Show the run's folder; without it, the view copies the path. */
  openFolder?(): void;

  /** What was chosen in the view, where that outlives the page. */
  readonly memory?: IMemory;
}

/** Keeps choices: which log is open, smoothing, the scale. */
export interface IMemory {
  get(key: string): unknown;
  set(key: string, value: unknown): void;
}

/** Translates what the view itself says; JupyterLab's `TranslationBundle` is one. */
export interface ITranslate {
  __(text: string, ...values: (string | number)[]): string;
}

/** Says everything as it is written, with `%1`, `%2`, ... filled in. */
export const english: ITranslate = {
  __: (text, ...values) =>
    text.replace(/%(\d+)/g, (_, place) => String(values[place - 1]))
};

/** What to show of a part that has not arrived. */
export const EMPTY_PARTS: Parts = {
  about: {
    id: '',
    headline: '',
    strategy: '',
    world_size: 0,
    devices: '',
    batch: '',
    folder: '',
    notebook: '',
    created: 0
  },
  status: {
    state: 'starting',
    word: '',
    tone: 'idle',
    elapsed: '',
    remaining: '',
    over: false,
    stopping: ''
  },
  notices: [],
  failure: null,
  progress: [],
  curves: { shown: [], hidden: 0 },
  throughput: {
    rate: '',
    step_time: '',
    slowest: -1,
    words: '',
    rates: [],
    step_times: []
  },
  ranks: [],
  logs: []
};
