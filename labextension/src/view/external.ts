import type { ExternalView } from '../generated/report';
import { make } from './dom';
import { errorText } from './errors';
import { mountSection, type ISection, type ISectionView } from './section';
import type { ITranslate } from './source';

/** The sections of other packages; each is the default export of an ES module. */
export const external: ISection = {
  shows: ['external'],
  create(context) {
    const { trans, read } = context;
    const node = make('div', 'external');
    const ends: (() => void)[] = [];
    let disposed = false;

    const add = async (view: ExternalView) => {
      const place = make('div');
      node.append(place);
      try {
        const section = await importSection(view.esm);
        if (!disposed) {
          ends.push(mountSection(place, withErrorMessage(section, view, trans), context));
        }
      } catch (reason) {
        place.append(errorMessage(view, reason, trans));
      }
    };
    let added = false;
    const update = () => {
      if (!added) {
        added = true; // the list of installed views never changes
        read('external').forEach(view => void add(view));
      }
      node.hidden = !node.hasChildNodes();
    };
    const dispose = () => {
      disposed = true;
      ends.forEach(end => end());
    };
    return { node, update, dispose };
  }
};

async function importSection(esm: string): Promise<ISection> {
  const url = URL.createObjectURL(new Blob([esm], { type: 'text/javascript' }));
  try {
    const module = (await import(/* webpackIgnore: true */ url)) as { default: ISection };
    return module.default;
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** Show an error of `section` in its place, so that the other sections stay up to date. */
function withErrorMessage(
  section: ISection,
  view: ExternalView,
  trans: ITranslate
): ISection {
  const create: ISection['create'] = context => {
    let drawn: ISectionView;
    try {
      drawn = section.create(context);
    } catch (reason) {
      return { node: errorMessage(view, reason, trans), update: () => undefined };
    }
    const update = () => {
      try {
        drawn.update();
      } catch (reason) {
        drawn.node.replaceChildren(errorMessage(view, reason, trans));
      }
    };
    return { node: drawn.node, update, dispose: () => drawn.dispose?.() };
  };
  return { shows: section.shows, create };
}

function errorMessage(view: ExternalView, reason: unknown, trans: ITranslate) {
  const text = trans.__('The view %1 cannot be shown: %2', view.name, errorText(reason));
  return make('div', 'empty', { role: 'status' }, text);
}
