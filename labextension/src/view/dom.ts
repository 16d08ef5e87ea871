// DOM helpers.  All text of a run comes from notebooks and ranks, so it only becomes text nodes and
// attributes, never markup.

export type Child = Node | string;

let lastId = 0;

/** An id that is unique in the page. */
export function uniqueId(): string {
  lastId += 1;
  return `nbmgpu-${Date.now().toString(36)}-${lastId}`;
}

/** Create an HTML element of class `nbmgpu-<name>`, or without a class if the name is empty. */
export function make<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  name = '',
  attributes: Record<string, string> = {},
  ...children: Child[]
): HTMLElementTagNameMap[Tag] {
  const node = document.createElement(tag);
  if (name) {
    node.className = `nbmgpu-${name}`;
  }
  for (const [key, value] of Object.entries(attributes)) {
    node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

/** Create a button that is not a submit button. */
export function button(
  name: string,
  label: string,
  onClick: (event: MouseEvent) => void
) {
  const node = make('button', name, { type: 'button' }, label);
  node.addEventListener('click', onClick);
  return node;
}

/** Set a node's text if it differs, so that selections and live regions are undisturbed. */
export function setText(node: Element, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/** A place for the note of a run, which may have many lines: it scrolls, also by the arrow keys. */
export function noteNode(label: string): HTMLElement {
  return make('div', 'note', { role: 'note', 'aria-label': label, tabindex: '0' });
}

/** Show a note, or nothing if it is empty. */
export function setNote(node: HTMLElement, text: string): void {
  setText(node, text);
  node.hidden = !text;
}

/** The nodes of a text in which code is between backticks, as in Markdown. */
export function withCode(text: string): Child[] {
  return text
    .split(/`([^`\n]+)`/)
    .map((part, index) => (index % 2 ? make('code', '', {}, part) : part))
    .filter(part => part !== '');
}

/** Set an attribute if it differs. */
export function setAttribute(node: Element, name: string, value: string): void {
  if (node.getAttribute(name) !== value) {
    node.setAttribute(name, value);
  }
}

/** The view of one item. */
export interface IItemView<Item> {
  node: HTMLElement;
  update(item: Item, index: number): void;
  dispose?(): void;
}

/** One child node per item; items with the same key keep their node and update it. */
export class KeyedList<Item> {
  private children = new Map<string, IItemView<Item>>();

  constructor(
    private parent: HTMLElement,
    private key: (item: Item, index: number) => string,
    private create: (item: Item) => IItemView<Item>
  ) {}

  update(items: Item[]): void {
    const keys = items.map(this.key);
    const wanted = new Set(keys);
    for (const [key, child] of this.children) {
      if (!wanted.has(key)) {
        child.node.remove();
        child.dispose?.();
        this.children.delete(key);
      }
    }
    items.forEach((item, index) => {
      let child = this.children.get(keys[index]);
      if (!child) {
        child = this.create(item);
        this.children.set(keys[index], child);
      }
      if (this.parent.children[index] !== child.node) {
        this.parent.insertBefore(child.node, this.parent.children[index] ?? null);
      }
      child.update(item, index);
    });
  }

  values(): IItemView<Item>[] {
    return [...this.children.values()];
  }

  dispose(): void {
    this.update([]);
  }
}

/** Move the focus between the nodes that match `selector` with arrow keys, Home and End. */
export function addArrowKeyNavigation(
  bar: HTMLElement,
  selector: string,
  onFocus?: (node: HTMLElement) => void,
  [previous, next]: [string, string] = ['ArrowLeft', 'ArrowRight']
) {
  bar.addEventListener('keydown', event => {
    const all = [...bar.querySelectorAll<HTMLElement>(selector)];
    const at = all.indexOf(document.activeElement as HTMLElement);
    const to = {
      [next]: at + 1,
      [previous]: at - 1,

      Home: 0,
      End: all.length - 1
    }[event.key];
    if (at < 0 || to === undefined) {
      return;
    }
    const chosen = all[(to + all.length) % all.length];
    chosen.focus();
    onFocus?.(chosen);
    event.preventDefault();
  });
}
