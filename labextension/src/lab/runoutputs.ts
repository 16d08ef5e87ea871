import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';

import type { RunSummary } from '../generated/server';
import { isRunning } from './runsstate';
import { panelOutputs, type IPanelOutput } from './paneloutputs';
import { IRunsModel } from './tokens';

/** For how long a kernel may put the summary of its run in place itself, in milliseconds. */
const PATIENCE = 3000;

/**
 * Lets a notebook keep what it shows of a run, whatever becomes of its page and its kernel.
 *
 * A page that is loaded again finds in the notebook's file what was saved, so the notebook is saved
 * when a run begins.  It hears nothing of what the kernel does to outputs from before; nor does a
 * kernel that was restarted do anything.  So the panel of a run that is over gives way here.
 */
export const runOutputsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbmgpu:run-outputs',
  description:
    'Saves a notebook when its run begins; leaves a summary where a run is over.',
  autoStart: true,
  requires: [INotebookTracker, IRunsModel],
  optional: [IDocumentManager],
  activate: (
    _app: JupyterFrontEnd,
    notebooks: INotebookTracker,
    model: IRunsModel,
    documents: IDocumentManager | null
  ) => {
    const saved = new Set<string>();
    const isOver = (id: string): boolean =>
      !model.state.runs.some(run => run.id === id && isRunning(run));

    const save = (panel: NotebookPanel): void => {
      for (const { run } of panelsOf(panel)) {
        if (!saved.has(run) && !isOver(run)) {
          saved.add(run);
          panel.context.save().catch(reason => console.warn('nbmgpu: not saved', reason));
        }
      }
    };
    const settle = async (panel: NotebookPanel, run: string): Promise<void> => {
      const summary = await model.summary(run);
      for (const output of [...panelsOf(panel)]) {
        if (output.run === run) {
          replace(output, summary);
        }
      }
    };
    const settleSoon = (panel: NotebookPanel): void => {
      window.setTimeout(() => {
        const left = new Set([...panelsOf(panel)].map(({ run }) => run));
        [...left].filter(isOver).forEach(run => {
          settle(panel, run).catch(reason => console.debug('nbmgpu: no summary', reason));
        });
      }, PATIENCE);
    };
    const watch = (panel: NotebookPanel): void => {
      void panel.context.ready.then(() => {
        // What stands in the file was saved before.
        [...panelsOf(panel)].forEach(({ run }) => saved.add(run));
        settleSoon(panel);
      });
    };

    model.changed.connect(() => {
      if (documents?.autosave) {
        notebooks.forEach(panel => {
          if (panel.context.contentsModel?.writable) {
            save(panel);
          }
        });
      }
    });
    model.ended.connect(() => notebooks.forEach(settleSoon));
    notebooks.forEach(watch);
    notebooks.widgetAdded.connect((_, panel) => watch(panel));
  }
};

function* panelsOf(panel: NotebookPanel): Generator<IPanelOutput> {
  const model = panel.isDisposed ? null : panel.content.model;
  if (model) {
    yield* panelOutputs(model.cells);
  }
}

function replace({ outputs, index }: IPanelOutput, { html, text }: RunSummary): void {
  outputs.set(index, {
    output_type: 'display_data',
    data: { 'text/html': html, 'text/plain': text },
    metadata: {}
  });
}
