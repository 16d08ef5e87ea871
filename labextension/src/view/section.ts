import type { IMemory, IRunSource, ITranslate, PartName } from './source';
import type { Parts } from '../generated/report';

/** What every part of the view works with. */
export interface ISectionContext {
  source: IRunSource;
  trans: ITranslate;
  memory: IMemory;
  /** A part of the run, or what stands for it until it arrives. */
  read<Name extends PartName>(part: Name): Parts[Name];
}

/** A part of the view: its node, the parts of the run it shows, and how it takes them over. */
export interface ISection {
  node: HTMLElement;
  shows: PartName[];
  update(): void;
  dispose?(): void;
}
