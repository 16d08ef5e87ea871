import type { Parts } from '../generated/report';
import type { Emitter } from './emitter';
import { FrameQueue } from './framequeue';
import type { IMemory, IRunSource, ITranslate, PartName } from './source';

/** The dependencies of the sections of the view. */
export interface ISectionContext {
  source: IRunSource;
  trans: ITranslate;
  memory: IMemory;
  /** Emits a rank to open its log. */
  logRequests: Emitter<number>;
  /** A part of the run that the section shows. */
  read<Name extends PartName>(part: Name): Parts[Name];
}

/** A section of the view, for one run. */
export interface ISectionView {
  node: HTMLElement;
  /** Draw the current parts. */
  update(): void;
  dispose?(): void;
}

/** A section of the view: the parts of the run that it shows, and how it draws them. */
export interface ISection {
  shows: PartName[];
  /** Called once all of these parts have arrived. */
  create(context: ISectionContext): ISectionView;
}

/** The updates of all sections in the page: several panels share its frames. */
const updates = new FrameQueue();

/** Append `section` to `root`, and update it when its parts change. Returns a function that ends this. */
export function mountSection(
  root: HTMLElement,
  section: ISection,
  context: ISectionContext
): () => void {
  const { source } = context;
  const place = document.createComment('');
  root.append(place);
  let view: ISectionView | undefined;
  const update = () => {
    if (!view && section.shows.every(part => source.get(part) !== undefined)) {
      view = section.create(context);
      place.replaceWith(view.node);
    }
    view?.update();
  };
  update();
  const end = source.onChange(section.shows, () => updates.add(update));
  return () => {
    end();
    updates.delete(update);
    view?.dispose?.();
  };
}
