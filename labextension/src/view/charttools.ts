import type { IScaling } from './chartspec';
import { button, make, setAttribute, uniqueId } from './dom';
import type { IMemory, ITranslate } from './source';

/** The settings of charts, and the controls that change them. */
export interface IChartTools {
  readonly scaling: IScaling;
  /** Smoothing, log scale, and the button that resets the zoom. */
  readonly nodes: HTMLElement[];
}

/** Create the settings that charts share; `redraw` is called when one has changed. */
export function chartTools(
  memory: IMemory,
  trans: ITranslate,
  redraw: () => void
): IChartTools {
  const scaling: IScaling = {
    key: uniqueId(),
    smoothing: Number(memory.get('smoothing') ?? 0),
    log: memory.get('log') === true,
    zoom: null,
    zoomTo: zoom => {
      scaling.zoom = zoom;
      resetZoom.hidden = !zoom;
      redraw();
    }
  };
  const smoothing = make('input', 'smoothing', {
    type: 'range',
    min: '0',
    max: '1',
    step: '0.05',
    value: String(scaling.smoothing)
  });
  smoothing.addEventListener('input', () => {
    scaling.smoothing = Number(smoothing.value);
    memory.set('smoothing', scaling.smoothing);
    redraw();
  });
  const log = button('toggle', trans.__('Log scale'), () => {
    scaling.log = !scaling.log;
    setAttribute(log, 'aria-pressed', String(scaling.log));
    memory.set('log', scaling.log);
    redraw();
  });
  setAttribute(log, 'aria-pressed', String(scaling.log));
  const resetZoom = button('toggle', trans.__('Whole run'), () => scaling.zoomTo(null));
  resetZoom.hidden = true;
  const label = make('label', 'smooth', {}, trans.__('Smoothing'), smoothing);
  return { scaling, nodes: [label, log, resetZoom] };
}
