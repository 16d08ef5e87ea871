/** Calls its listeners with each value. */
export class Emitter<Value> {
  private listeners = new Set<(value: Value) => void>();

  emit(value: Value): void {
    this.listeners.forEach(listener => listener(value));
  }

  /** Returns a function that unsubscribes. */
  listen(listener: (value: Value) => void): () => void {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  }
}
