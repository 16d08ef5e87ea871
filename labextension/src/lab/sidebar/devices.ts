import type { TranslationBundle } from '@jupyterlab/translation';
import { h, type VirtualElement } from '@lumino/virtualdom';

import type { DeviceUsage } from '../../generated/server';
import { deviceText } from '../../view/words';
import { formatPercent, formatUsage } from '../format';

/** The machine's devices, each with its utilization and memory usage. */
export function deviceList(
  devices: readonly DeviceUsage[],
  trans: TranslationBundle
): VirtualElement {
  return h.ul(
    { className: 'nbmgpu-Devices' },
    devices.map(device => deviceRow(device, trans))
  );
}

function deviceRow(device: DeviceUsage, trans: TranslationBundle): VirtualElement {
  const processor = device.kind === 'cpu';
  const label = deviceText(device.label, trans);
  const { use, memory_used: used, memory_total: total } = device;
  const memory = used < 0 || total <= 0 ? -1 : used / total;
  return h.li(
    { key: device.name, className: 'nbmgpu-Device' },
    h.span({ className: 'nbmgpu-Device-name' }, processor ? 'CPU' : device.name),
    h.span({ className: 'nbmgpu-Device-label', title: label }, label),
    meter(
      processor ? trans.__('cores') : trans.__('use'),
      use,
      formatPercent(use),
      trans
    ),
    meter(trans.__('memory'), memory, formatUsage(used, total, trans), trans)
  );
}

/** A bar with its name and value; `part` is negative if unknown. */
function meter(
  name: string,
  part: number,
  text: string,
  trans: TranslationBundle
): VirtualElement {
  const known = part >= 0;
  const full = Math.min(Math.max(part, 0), 1);
  const value = known ? text : trans.__('unknown');
  return h.div(
    {
      className: 'nbmgpu-Meter',
      role: 'meter',
      'aria-label': name,
      'aria-valuemin': '0',
      'aria-valuemax': '100',
      'aria-valuenow': (100 * full).toFixed(0),
      'aria-valuetext': value,
      dataset: { level: full > 0.9 ? 'high' : 'usual' }
    },
    h.span({ className: 'nbmgpu-Meter-name' }, name),
    h.span(
      { className: 'nbmgpu-Meter-track' },
      h.span({ className: 'nbmgpu-Meter-fill', style: { width: `${100 * full}%` } })
    ),
    h.span({ className: 'nbmgpu-Meter-value' }, value)
  );
}
