// Made from Python by tools/typescript_types.py; a change here is lost.

/** What was asked: the content of `run.json`. */
export interface RunRecord {
  /** the run's name. */
  id: string;
  /** seconds since the epoch, in UTC. */
  created: number;
  /** as in `RunOptions`. */
  strategy: string;
  /** one name per rank (`cuda:1`, `cpu`). */
  devices: string[];
  /** as in `RunOptions`. */
  batch: string;
  /** as in `RunOptions`. */
  seed: number | null;
  /** seconds after which the run is ended; None for no limit. */
  timeout: number | null;
  /** as in `RunOptions`. */
  fresh: boolean;
  /** the kernel's, which ranks take on. */
  cwd: string;
  /** the kernel's, which ranks take on. */
  sys_path: string[];
  /**
   * paths to open while the run lives, one result per rank; they may be memory files that
   * vanish with it.
   */
  bundle: string;
  /**
   * paths to open while the run lives, one result per rank; they may be memory files that
   * vanish with it.
   */
  results: string[];
  /** the process that has asked for the run. */
  kernel_pid: number;
  /** seconds since the epoch, in UTC. */
  kernel_create_time: number;
  /** its path; empty where the kernel does not know it. */
  notebook: string;
  /** of a rank, for computing on the CPU. */
  threads: number;
  /** the global batch in words. */
  batch_line: string;
  /** all of these options, and the strategy's. */
  options: Record<string, unknown>;
}
