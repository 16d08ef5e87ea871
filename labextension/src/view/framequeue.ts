/** Milliseconds of a frame after which what remains waits for the next one. */
const BUDGET = 6;

/**
 * Runs callbacks before the next frames: as many in each as fit, at least one.  An update of a run
 * has many parts, and drawing all of them at once would delay a frame.
 */
export class FrameQueue {
  private readonly waiting = new Set<() => void>();
  private request = 0;

  /** Run `callback` soon; once, even if it is added again before. */
  add(callback: () => void): void {
    this.waiting.add(callback);
    this.request ||= requestAnimationFrame(() => this.run());
  }

  delete(callback: () => void): void {
    this.waiting.delete(callback);
  }

  private run(): void {
    this.request = 0;
    const begun = performance.now();
    try {
      for (const callback of this.waiting) {
        this.waiting.delete(callback);
        callback();
        if (performance.now() - begun > BUDGET) {
          break;
        }
      }
    } finally {
      // One that fails does not keep the others from running.
      if (this.waiting.size) {
        this.request ||= requestAnimationFrame(() => this.run());
      }
    }
  }
}

/** The drawings of all charts in the page: a changed setting redraws every chart of a view. */
export const drawingQueue = new FrameQueue();
