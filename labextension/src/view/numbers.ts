/** A value for people, as `number` in nbmgpu/report/words.py writes it. */
export function readable(value: number): string {
  const size = Math.abs(value);
  if (!Number.isFinite(value)) {
    return Number.isNaN(value) ? 'nan' : value > 0 ? 'inf' : '-inf';
  }
  if (size === 0 || (size >= 1e-3 && size < 1e3)) {
    return String(Number(value.toPrecision(4)));
  }
  if (size >= 1e3 && size < 1e7) {
    return Math.round(value).toLocaleString('en-US');
  }
  return value.toExponential(2).replace(/\.?0*e\+?/, 'e');
}

/** A short time in seconds, as `span` in nbmgpu/report/words.py writes it. */
export function readableTime(seconds: number): string {
  if (seconds < 1) {
    const thousandths = seconds * 1e3;
    return `${Number(thousandths.toPrecision(thousandths < 10 ? 2 : 3))} ms`;
  }
  return `${Number(seconds.toPrecision(3))} s`;
}
