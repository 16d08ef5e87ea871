/** Format a value, like `number` in nbmgpu/report/text_format.py. */
export function formatNumber(value: number): string {
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

/** Format whole seconds, like `clock` in nbmgpu/report/text_format.py: `7 s`, `12:30`, `3:05:00`. */
export function formatDuration(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const [hours, minutes, rest] = [
    Math.floor(whole / 3600),
    Math.floor(whole / 60) % 60,
    whole % 60
  ];
  const two = (value: number): string => String(value).padStart(2, '0');
  if (hours) {
    return `${hours}:${two(minutes)}:${two(rest)}`;
  }
  return minutes ? `${minutes}:${two(rest)}` : `${rest} s`;
}

/** Format a short time in seconds, like `span` in nbmgpu/report/text_format.py. */
export function formatSeconds(seconds: number): string {
  if (seconds < 1) {
    const thousandths = seconds * 1e3;
    return `${Number(thousandths.toPrecision(thousandths < 10 ? 2 : 3))} ms`;
  }
  return seconds < 60 ? `${Number(seconds.toPrecision(3))} s` : formatDuration(seconds);
}

/** Format a share, like `percent` in nbmgpu/runs/shard_rendering.py; `0 %` and `100 %` are exact. */
export function formatShare(share: number): string {
  if (share > 0 && share < 0.005) {
    return '< 1 %';
  }
  return share >= 0.995 && share < 1 ? '> 99 %' : `${Math.round(100 * share)} %`;
}

/** Units of memory, each 1024 of the one before. */
export const UNITS = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/** Format bytes, like `format_bytes` in nbmgpu/formatting.py: `1.4 GiB`. */
export function formatBytes(size: number): string {
  let unit = 0;
  while (size >= 999.5 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${size.toFixed(unit === 0 || size >= 99.5 ? 0 : 1)} ${UNITS[unit]}`;
}
