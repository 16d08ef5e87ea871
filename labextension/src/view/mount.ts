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
    memory: source.memory ?? viewMemory(),
    read: part => source.get(part) ?? EMPTY_PARTS[part]
  };
  const logSection = logs(context);
  const sections: ISection[] = [
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
    // Do not run notebook shortcuts for keys pressed in the view.
    'data-lm-suppress-shortcuts': 'true'
  });
  root.classList.add('nbmgpu');
  root.append(...sections.map(section => section.node));
  node.append(root);
  sections.forEach(section => section.update());
  const end = source.onChange(changed => {
    sections
      .filter(section => section.shows.some(name => changed.includes(name)))
      .forEach(section => section.update());
  });
  return {
    dispose: () => {
      end();
      sections.forEach(section => section.dispose?.());
      root.remove();
    }
  };
}

/** Keeps the user's choices while the view exists. */
function viewMemory(): IMemory {
  const kept = new Map<string, unknown>();
  return { get: key => kept.get(key), set: (key, value) => void kept.set(key, value) };
}
