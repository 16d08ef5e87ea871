import type uPlot from 'uplot';

/** Draw a vertical line at each of `steps`, where epochs end. */
export function drawEpochs(plot: uPlot, steps: readonly number[], color: string): void {
  const { ctx, bbox } = plot;
  const scale = window.devicePixelRatio || 1;
  ctx.save();
  ctx.strokeStyle = color;
  ctx.globalAlpha = 0.45;
  ctx.lineWidth = scale;
  ctx.setLineDash([2 * scale, 4 * scale]);
  for (const step of steps) {
    const x = Math.round(plot.valToPos(step, 'x', true));
    if (x >= bbox.left && x <= bbox.left + bbox.width) {
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
  }
  ctx.restore();
}
