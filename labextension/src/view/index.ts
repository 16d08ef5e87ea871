// The run view: framework-free, the same in a notebook's output and in JupyterLab's main area.
export { mountRunView } from './mount';
export { english, pageTranslations, translatePage } from './source';
export type {
  CsvPage,
  CsvRequest,
  CurveLine,
  CurveRequest,
  IMemory,
  IRunSource,
  ITranslate,
  LogPage,
  LogRequest,
  PartName,
  Parts,
  RankRequest,
  RankRow,
  TracePart,
  TraceRequest
} from './source';
