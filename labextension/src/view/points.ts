/** The points of a line: `x[i]` goes with `y[i]`, and x grows. */
export interface IPoints {
  x: number[];
  y: number[];
}

/** Decode points: base64 of little-endian float32 pairs. */
export function unpack(packed: string): IPoints {
  const bytes = Uint8Array.from(atob(packed), character => character.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const points: IPoints = { x: [], y: [] };
  for (let at = 0; at + 8 <= bytes.length; at += 8) {
    points.x.push(view.getFloat32(at, true));
    points.y.push(view.getFloat32(at + 4, true));
  }
  return points;
}

/** Replace values that cannot be drawn, such as NaN or those invalid on a log scale, by null. */
export function drawable(values: number[], log: boolean): (number | null)[] {
  return values.map(value =>
    Number.isFinite(value) && (!log || value > 0) ? value : null
  );
}
