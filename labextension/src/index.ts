import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

import { keepingPlugin } from './lab/keeping';
import { notificationsPlugin } from './lab/notifications';
import { pickingPlugin } from './lab/picking';
import { runBoardPlugin } from './lab/runboard';
import { runCommandsPlugin } from './lab/runcommands';
import { runTabsPlugin } from './lab/runtabs';
import { settingsPlugin } from './lab/settings';
import { sidebarPlugin } from './lab/sidebar';
import { statusPlugin } from './lab/status';
import { writingPlugin } from './lab/writing';

/** Everything that nbmgpu adds to JupyterLab and Notebook 7. */
const plugins: JupyterFrontEndPlugin<unknown>[] = [
  settingsPlugin,
  runBoardPlugin,
  runCommandsPlugin,
  runTabsPlugin,
  sidebarPlugin,
  statusPlugin,
  notificationsPlugin,
  keepingPlugin,
  pickingPlugin,
  writingPlugin
];

export default plugins;
