/** A curve as the `d` of an SVG path of size `width` by `height`; empty below two points. */
export function sparkline(
  points: readonly (readonly [number, number])[],
  width: number,
  height: number
): string {
  const finite = points.filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
  if (finite.length < 2) {
    return '';
  }
  const [across, up] = [span(finite.map(([x]) => x)), span(finite.map(([, y]) => y))];
  return finite
    .map(([x, y], index) => {
      const left = width * across(x);
      const top = height * (1 - up(y));
      return `${index ? 'L' : 'M'}${left.toFixed(1)} ${top.toFixed(1)}`;
    })
    .join('');
}

/** Map the range of the values to 0..1; equal values to 0.5. */
function span(values: number[]): (value: number) => number {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return high > low ? value => (value - low) / (high - low) : () => 0.5;
}
