import { make } from './dom';
import type { Child } from './dom';
import type { IMemory } from './source';

/** A part with a title that folds and unfolds it. */
export function foldable(title: string, ...children: Child[]): HTMLDetailsElement {
  return make('details', 'unfold', {}, make('summary', '', {}, title), ...children);
}

/** Unfold `node` as the user left it last, at first if `isOpen`, and remember what he chooses. */
export function rememberFolding(
  node: HTMLDetailsElement,
  memory: IMemory,
  key: string,
  isOpen: boolean
): void {
  const remembered = () => {
    const value = memory.get(key);
    return typeof value === 'boolean' ? value : isOpen;
  };
  node.open = remembered();
  node.addEventListener('toggle', () => {
    if (node.open !== remembered()) {
      memory.set(key, node.open);
    }
  });
}

/** A region that may be wider than the panel: with the focus, it scrolls by arrow keys. */
export function scrollRegion(name: string, title: string, ...children: Child[]) {
  const attributes = { role: 'region', 'aria-label': title, tabindex: '0' };
  return make('div', name, attributes, ...children);
}

/** A cell of a table that is filled by a share from 0 to 1. */
export function shareCell(share: number, text: string, title: string) {
  const cell = make('td', 'share', { title }, text);
  cell.style.setProperty('--nbmgpu-share', `${100 * share}%`);
  return cell;
}
