import type { IMemory, IRunSource, ITranslate, PartName } from './source';
import type { Parts } from '../generated/report';

/** The dependencies of the sections of the view. */
export interface ISectionContext {
  source: IRunSource;
  trans: ITranslate;
  memory: IMemory;
  /** A part of the run, or an empty part until it arrives. */
  read<Name extends PartName>(part: Name): Parts[Name];
}

/** A section of the view: its node, and the parts of the run that it shows. */
export interface ISection {
  node: HTMLElement;
  shows: PartName[];
  update(): void;
  dispose?(): void;
}
