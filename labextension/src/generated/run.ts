// Made from Python by tools/typescript_types.py; a change here is lost.

/**
 * What was asked: the content of `run.json`.
 *
 * `devices` has one name per rank (`cuda:1`, `cpu`). `bundle` and `results` are paths to
 * open while the run lives; they may be memory files that vanish with it. `batch_line` is
 * the global batch in words.
 */
export interface RunRecord {
  id: string;
  created: number;
  strategy: string;
  devices: string[];
  batch: string;
  seed: number | null;
  timeout: number | null;
  fresh: boolean;
  cwd: string;
  sys_path: string[];
  bundle: string;
  results: string[];
  kernel_pid: number;
  kernel_create_time: number;
  notebook: string;
  threads: number;
  batch_line: string;
  options: Record<string, unknown>;
}
