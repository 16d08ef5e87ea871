import { charts } from './charts';
import { make } from './dom';
import { failure } from './failure';
import { header } from './header';
import { logs } from './logs';
import { notices } from './notices';
import type { ISectionContext, ISection } from './section';
import { progress } from './progress';
import { ranks } from './ranks';
import { EMPTY_PARTS, type IMemory, type IRunSource, type ITranslate } from './source';

/** Show the run of `source` in `node`, until it is disposed of. */
export function mountRunView(
  node: HTMLElement,
  source: IRunSource,
  trans: ITranslate
): { dispose(): void } {
  const context: ISectionContext = {
    source,
    trans,
    memory: source.memory ?? shortMemory(),
    read: part => source.get(part) ?? EMPTY_PARTS[part]
  };
  const logSection = logs(context);
  const parts: ISection[] = [
    header(context),
    notices(context),
    failure(context),
    progress(context),
    charts(context),
    ranks(context, logSection.open),
    logSection
  ];
  const root = make('div', 'view', {
    role: 'region',
    'aria-label': trans.__('Run on several ranks'),
    // Keys pressed in the view are not the notebook's commands.
    'data-lm-suppress-shortcuts': 'true'
  });
  root.classList.add('nbmgpu');
  root.append(...parts.map(part => part.node));
  node.append(root);
  parts.forEach(part => part.update());
  const end = source.onChange(changed => {
    parts
      .filter(part => part.shows.some(name => changed.includes(name)))
      .forEach(part => part.update());
  });
  return {
    dispose: () => {
      end();
      parts.forEach(part => part.dispose?.());
      root.remove();
    }
  };
}

/** Remembers choices as long as the view is there. */
function shortMemory(): IMemory {
  const kept = new Map<string, unknown>();
  return { get: key => kept.get(key), set: (key, value) => void kept.set(key, value) };
}
