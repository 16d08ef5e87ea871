import { charts } from './charts';
import { external } from './external';
import { failure } from './failure';
import { header } from './header';
import { logs } from './logs';
import { nodes } from './nodes';
import { notices } from './notices';
import { profile } from './profile';
import { progress } from './progress';
import { ranks } from './ranks';
import type { ISection } from './section';
import { shards } from './shards';
import { system } from './system';
import { tensorboard } from './tensorboard';

/** All sections of the view, from top to bottom. */
export const SECTIONS: ISection[] = [
  header,
  notices,
  failure,
  progress,
  charts,
  tensorboard,
  system,
  ranks,
  nodes,
  shards,
  profile,
  logs,
  external
];
