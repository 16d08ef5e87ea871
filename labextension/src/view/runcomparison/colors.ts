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

/** The color of the run at `index`. */
export function runColor(index: number): string {
  return COLORS[index % COLORS.length];
}
