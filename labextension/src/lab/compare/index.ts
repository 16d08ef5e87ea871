import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette, MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { RunsServer } from '../../server';
import { CommandIDs } from '../commandids';
import { mgpuIcon } from '../icons';
import { addTab } from '../maintab';
import { IRunsModel } from '../tokens';
import { CompareTab } from './tab';

/** The number of runs that are compared by default, the newest. */
const NEWEST = 5;

/** Tabs that show several runs side by side. */
export const comparePlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbmgpu:compare-runs',
  description: 'Compares runs in a tab of the main area.',
  autoStart: true,
  requires: [IRunsModel],
  optional: [ICommandPalette, ILabShell, ILayoutRestorer, ITranslator],
  activate: (
    { commands, serviceManager, shell }: JupyterFrontEnd,
    model: IRunsModel,
    palette: ICommandPalette | null,
    labShell: ILabShell | null,
    restorer: ILayoutRestorer | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('nbmgpu');
    const tracker = new WidgetTracker<MainAreaWidget<CompareTab>>({
      namespace: 'nbmgpu-comparisons'
    });
    const server = new RunsServer(serviceManager.serverSettings);
    const actions = {
      compare: (ids: readonly string[]) => server.compare(ids),
      open: (id: string) => void commands.execute(CommandIDs.openRun, { id }),
      onRunsChange: (content: CompareTab) => {
        const tab = tracker.find(each => each.content === content);
        void (tab && tracker.save(tab));
      }
    };
    commands.addCommand(CommandIDs.compareRuns, {
      label: trans.__('Compare the Newest Runs'),
      caption: trans.__('Show curves, options and results of several runs side by side'),
      icon: args => (args.isPalette ? undefined : mgpuIcon),
      describedBy: {
        args: {
          type: 'object',
          properties: {
            ids: {
              type: 'array',
              items: { type: 'string' },
              description: 'The ids of the runs; by default, the newest runs.'
            }
          }
        }
      },
      isVisible: args => !!args.ids || model.state.runs.length > 1,
      execute: async args => {
        const given = args.ids as string[] | undefined;
        const ids = given ?? model.state.runs.slice(0, NEWEST).map(run => run.id);
        if (!ids.length) {
          return;
        }
        const same = tracker.find(
          each => [...each.content.runIds()].sort().join() === [...ids].sort().join()
        );
        if (same) {
          shell.activateById(same.id);
          return same;
        }
        const content = new CompareTab(ids, model, actions, trans);
        const tab = new MainAreaWidget({ content });
        tab.toolbar.hide();
        addTab(tab, shell, labShell);
        await tracker.add(tab);
        shell.activateById(tab.id);
        return tab;
      }
    });
    palette?.addItem({ command: CommandIDs.compareRuns, category: trans.__('mGPU') });
    void restorer?.restore(tracker, {
      command: CommandIDs.compareRuns,
      args: tab => ({ ids: [...tab.content.runIds()] }),
      name: tab => tab.content.runIds().join()
    });
  }
};
