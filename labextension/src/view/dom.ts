// Small helpers around the DOM.  All text of a run comes from notebooks and ranks: it only ever
// becomes text nodes and attributes, never markup.

export type Child = Node | string;

let lastId = 0;

/** An id that no other node of the page has. */
export function uniqueId(): string {
  lastId += 1;
  return `nbmgpu-${Date.now().toString(36)}-${lastId}`;
}

/** Make an HTML element of class `nbmgpu-<name>`, or without a class when the name is empty. */
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

/** A button that does something in the page. */
export function button(name: string, label: string, act: (event: MouseEvent) => void) {
  const node = make('button', name, { type: 'button' }, label);
  node.addEventListener('click', act);
  return node;
}

/** Change a node's text only where it differs, so that selections and live regions rest. */
export function setText(node: Element, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/** Change an attribute only where it differs. */
export function setAttribute(node: Element, name: string, value: string): void {
  if (node.getAttribute(name) !== value) {
    node.setAttribute(name, value);
  }
}

/** Something that shows one item. */
export interface IItemView<Item> {
  node: HTMLElement;
  update(item: Item, index: number): void;
  dispose?(): void;
}

/** Keeps one child per item: those with the same key stay and are updated in place. */
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

/** Arrow keys, Home and End walk along the children of `bar` that `selector` matches. */
export function addArrowKeyNavigation(
  bar: HTMLElement,
  selector: string,
  arrive?: (node: HTMLElement) => void
) {
  bar.addEventListener('keydown', event => {
    const all = [...bar.querySelectorAll<HTMLElement>(selector)];
    const at = all.indexOf(document.activeElement as HTMLElement);
    const to = {
      ArrowRight: at + 1,
      ArrowLeft: at - 1,
      Home: 0,
      End: all.length - 1
    }[event.key];
    if (at < 0 || to === undefined) {
      return;
    }
    const next = all[(to + all.length) % all.length];
    next.focus();
    arrive?.(next);
    event.preventDefault();
  });
}
