import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { addReloadNotice, missingOutput, outputsAtEnd } from './reloadedoutput';
import { panelOutputs, type IPanelOutput } from './paneloutputs';
import { isKnownToBeOver, isListedAsRunning } from './runsstate';
import { IRunsModel } from './tokens';

/** Milliseconds that a kernel has for replacing the panel of its finished run by a summary. */
const KERNEL_TIMEOUT = 3000;

/**
 * Keeps the outputs of runs in notebooks complete after a page reload or a kernel restart.
 *
 * A reloaded page shows the outputs in the notebook file, so the notebook is saved when a run
 * starts. JupyterLab does not deliver a running cell's later messages to a reloaded page, and a
 * restarted kernel sends none. So this plugin announces that output is missing, and adds it with
 * the summary when the run ends.
 */
export const runOutputsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbmgpu:run-outputs',
  description:
    'Saves a notebook when its run starts; adds missing outputs and the summary when it ends.',
  autoStart: true,
  requires: [INotebookTracker, IRunsModel],
  optional: [IDocumentManager, ITranslator],
  activate: (
    _app: JupyterFrontEnd,
    notebooks: INotebookTracker,
    model: IRunsModel,
    documents: IDocumentManager | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('nbmgpu');
    const saved = new Set<string>();
    /** Runs whose panels were restored from a notebook file. */
    const restored = new Set<string>();
    const isActive = (id: string): boolean => isListedAsRunning(model.state, id);
    let knewRuns = false;

    const save = (panel: NotebookPanel): void => {
      for (const { run } of panelsOf(panel)) {
        if (!saved.has(run) && isActive(run)) {
          saved.add(run);
          panel.context.save().catch(reason => console.warn('nbmgpu: not saved', reason));
        }
      }
    };
    const addNotices = (panel: NotebookPanel): void => {
      for (const { run, outputs } of [...panelsOf(panel)]) {
        if (restored.has(run) && isActive(run)) {
          addReloadNotice(outputs, run, trans);
        }
      }
    };
    const addSummary = async (panel: NotebookPanel, run: string): Promise<void> => {
      const summary = await model.summary(run);
      for (const { run: id, outputs } of [...panelsOf(panel)]) {
        if (id === run) {
          const missing = restored.has(run)
            ? await missingOutput(outputs, request => model.logs(run, request), trans)
            : [];
          outputs.fromJSON(outputsAtEnd(outputs.toJSON(), run, summary, missing));
        }
      }
    };
    const addSummaries = (panel: NotebookPanel): void => {
      window.setTimeout(() => {
        const runs = new Set([...panelsOf(panel)].map(({ run }) => run));
        [...runs]
          .filter(run => isKnownToBeOver(model.state, run))
          .forEach(run => {
            addSummary(panel, run).catch(reason =>
              console.debug('nbmgpu: no summary', reason)
            );
          });
      }, KERNEL_TIMEOUT);
    };
    const onPanelAdded = (panel: NotebookPanel): void => {
      void panel.context.ready.then(() => {
        for (const { run } of panelsOf(panel)) {
          saved.add(run);
          restored.add(run);
        }
        addNotices(panel);
        addSummaries(panel);
      });
    };

    model.changed.connect((_, { connection, runs }) => {
      // Before that, nothing is known of the runs of restored panels.
      const knowsRuns = connection === 'live' && runs.length > 0;
      if (knowsRuns && !knewRuns) {
        notebooks.forEach(addSummaries);
      }
      knewRuns = knowsRuns;
      notebooks.forEach(panel => {
        addNotices(panel);
        if (documents?.autosave && panel.context.contentsModel?.writable) {
          save(panel);
        }
      });
    });
    model.ended.connect(() => notebooks.forEach(addSummaries));
    notebooks.forEach(onPanelAdded);
    notebooks.widgetAdded.connect((_, panel) => onPanelAdded(panel));
  }
};

function* panelsOf(panel: NotebookPanel): Generator<IPanelOutput> {
  const model = panel.isDisposed ? null : panel.content.model;
  if (model) {
    yield* panelOutputs(model.cells);
  }
}
