import { LabIcon } from '@jupyterlab/ui-components';

import mgpuSvg from '../../style/icons/mgpu.svg';

/** The icon of nbmgpu: two devices. */
export const mgpuIcon = new LabIcon({ name: 'nbmgpu:mgpu', svgstr: mgpuSvg });
