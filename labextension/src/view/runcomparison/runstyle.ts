import type { ILineStyle } from '../linestyle';

/** A color for each run, for light and dark themes, as in nbmgpu/report/curve_chart.py. */
const COLORS = [
  '#3b82f6',
  '#e08b00',
  '#0d9488',
  '#db5a8b',
  '#a855f7',
  '#65a30d',
  '#06a3c4',
  '#a16b4f',
  '#6366f1',
  '#8b93a1'
];

/** The dash pattern of each further ten runs, whose colors repeat: solid, dashed, dotted, both. */
const DASHES = ['', '7 4', '2 4', '8 4 2 4'];

/** The style of the run at `index`. */
export function runStyle(index: number): ILineStyle {
  const round = Math.floor(index / COLORS.length);
  return { color: COLORS[index % COLORS.length], dash: DASHES[round % DASHES.length] };
}
