import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { expect, test, vi } from 'vitest';

import type { ComparedRun, RunComparison } from '../../generated/report';
import type { IRunsModel } from '../tokens';
import { CompareTab } from './tab';

// jsdom lacks what Lumino, the dialogs of apputils and uPlot need.
vi.hoisted(() => vi.stubGlobal('DragEvent', MouseEvent));
vi.mock('@jupyterlab/apputils', () => ({}));
vi.mock('../icons', () => ({ mgpuIcon: undefined }));
vi.mock('../../view/runcomparison', () => ({
  mountRunComparison: () => ({ update: vi.fn(), dispose: vi.fn() })
}));

/** Two runs with a name and one without; those of `missing` are deleted. */
function comparison(...missing: string[]): RunComparison {
  const names = { a: 'first', b: '', c: 'third' };
  const runs = Object.entries(names).map(
    ([id, name]) => ({ id, labels: { name } }) as ComparedRun
  );
  const kept = runs.filter(({ id }) => !missing.includes(id));
  return { runs: kept, missing } as unknown as RunComparison;
}

test('what was deleted is called by its name, where it has one', async () => {
  const model = { state: { runs: [] } } as unknown as IRunsModel;
  Object.assign(model, { changed: new Signal(model) });
  const compare = vi.fn().mockResolvedValueOnce(comparison());
  const actions = { compare, open: vi.fn(), onRunsChange: vi.fn() };
  const trans = nullTranslator.load('nbmgpu');
  const tab = new CompareTab(['a', 'b', 'c', 'd'], model, actions, trans);
  const notice = tab.node.querySelector<HTMLElement>('[role=status]')!;
  await compare.mock.results[0].value;
  expect(notice.hidden).toBe(true);
  compare.mockResolvedValueOnce(comparison('a', 'b', 'd'));
  Widget.attach(tab, document.body);
  tab.hide();
  tab.show(); // loads again
  await vi.waitFor(() => expect(notice.textContent).toBe('Deleted: first, b, d'));
  tab.dispose();
});
