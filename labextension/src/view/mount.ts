import { make } from './dom';
import { Emitter } from './emitter';
import { mountSection, type ISectionContext } from './section';
import { SECTIONS } from './sections';
import type { IMemory, IRunSource, ITranslate } from './source';

/** Show the run of `source` in `node`, until it is disposed of. */
export function mountRunView(
  node: HTMLElement,
  source: IRunSource,
  trans: ITranslate
): { dispose(): void } {
  const context: ISectionContext = {
    source,
    trans,
    memory: source.memory ?? viewMemory(),
    logRequests: new Emitter(),
    read: part => {
      const payload = source.get(part);
      if (payload === undefined) {
        throw new Error(`a section that reads ${part} has to list it in \`shows\``);
      }
      return payload;
    }
  };
  const root = make('div', 'view', {
    role: 'region',
    'aria-label': trans.__('Run on several ranks'),
    // Do not run notebook shortcuts for keys pressed in the view.
    'data-lm-suppress-shortcuts': 'true'
  });
  root.classList.add('nbmgpu');
  node.append(root);
  const ends = SECTIONS.map(section => mountSection(root, section, context));
  return {
    dispose: () => {
      ends.forEach(end => end());
      root.remove();
    }
  };
}

/** Keeps the user's choices while the view exists. */
export function viewMemory(): IMemory {
  const kept = new Map<string, unknown>();
  return { get: key => kept.get(key), set: (key, value) => void kept.set(key, value) };
}
