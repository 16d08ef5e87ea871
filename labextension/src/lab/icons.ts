import { LabIcon } from '@jupyterlab/ui-components';

import mgpuSvg from '../../style/icons/mgpu.svg';

/** Two devices, one behind the other: everything of nbmgpu wears it. */
export const mgpuIcon = new LabIcon({ name: 'nbmgpu:mgpu', svgstr: mgpuSvg });
