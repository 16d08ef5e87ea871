import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

import { runOutputsPlugin } from './lab/runoutputs';
import { notificationsPlugin } from './lab/notifications';
import { pickerPlugin } from './lab/pickerplugin';
import { runsModelPlugin } from './lab/runsmodelplugin';
import { runCommandsPlugin } from './lab/runcommands';
import { comparePlugin } from './lab/compare';
import { runTabsPlugin } from './lab/runtabs';
import { settingsPlugin } from './lab/settings';
import { sidebarPlugin } from './lab/sidebar';
import { statusPlugin } from './lab/status';
import { cellLinePlugin } from './lab/cellline';
import { pageTranslationsPlugin } from './lab/pagetranslations';

/** Everything that nbmgpu adds to JupyterLab and Notebook 7. */
const plugins: JupyterFrontEndPlugin<unknown>[] = [
  pageTranslationsPlugin,
  settingsPlugin,
  runsModelPlugin,
  runCommandsPlugin,
  runTabsPlugin,
  comparePlugin,
  sidebarPlugin,
  statusPlugin,
  notificationsPlugin,
  runOutputsPlugin,
  pickerPlugin,
  cellLinePlugin
];

export default plugins;
