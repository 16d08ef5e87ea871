// Renders ANSI colors.  Python removes all other escape codes, so this small parser suffices.
// Libraries for it generate markup, and a log must never become markup.

/** Text in one style; the colors are `0` to `255`, or `rgb(...)`, or empty. */
export interface IStyledText {
  text: string;
  color: string;
  background: string;
  bold: boolean;
  faint: boolean;
  italic: boolean;
  underlined: boolean;
}

type Style = Omit<IStyledText, 'text'>;

const PLAIN: Style = {
  color: '',
  background: '',
  bold: false,
  faint: false,
  italic: false,
  underlined: false
};

const CODE = /\u001b\[([0-9;:]*)m/; // eslint-disable-line no-control-regex

/** A line without its colors. */
export function withoutColors(line: string): string {
  return line
    .split(CODE)
    .filter((_, index) => index % 2 === 0)
    .join('');
}

/** Split a line where its style changes. */
export function styledTexts(line: string): IStyledText[] {
  const parts = line.split(CODE);
  const found: IStyledText[] = [];
  let style = PLAIN;
  parts.forEach((part, index) => {
    if (index % 2) {
      style = applyCode(style, part);
    } else if (part) {
      found.push({ ...style, text: part });
    }
  });
  return found;
}

function applyCode(before: Style, code: string): Style {
  const numbers = code.split(/[;:]/).map(Number);
  let style = { ...before };
  for (let n = numbers.shift(); n !== undefined; n = numbers.shift()) {
    if (n === 0) {
      style = { ...PLAIN };
    } else if (n === 38 || n === 48) {
      style[n === 38 ? 'color' : 'background'] = extendedColor(numbers);
    } else if (n === 39 || n === 49) {
      style[n === 39 ? 'color' : 'background'] = '';
    } else if ((n >= 30 && n <= 37) || (n >= 90 && n <= 97)) {
      style.color = String(n >= 90 ? n - 82 : n - 30);
    } else if ((n >= 40 && n <= 47) || (n >= 100 && n <= 107)) {
      style.background = String(n >= 100 ? n - 92 : n - 40);
    } else if (n === 22) {
      style.bold = style.faint = false;
    } else if (n <= 4 || (n >= 23 && n <= 24)) {
      const on = n < 20;
      style[
        (['faint', 'italic', 'underlined'] as const)[(on ? n : n - 20) - 2] ?? 'bold'
      ] = on;
    }
  }
  return style;
}

/** Parse the codes after 38 or 48: `5;n` or `2;r;g;b`. */
function extendedColor(numbers: number[]): string {
  const kind = numbers.shift();
  if (kind === 5) {
    return String(numbers.shift() ?? '');
  }
  return kind === 2 ? `rgb(${numbers.splice(0, 3).join(', ')})` : '';
}

/** The color in CSS: the first sixteen are the theme's, the rest the xterm color cube and grays. */
export function cssColor(color: string): string {
  const n = Number(color);
  if (color === '' || Number.isNaN(n)) {
    return color;
  }
  if (n < 16) {
    return `var(--nbmgpu-ansi-${n})`;
  }
  if (n >= 232) {
    const grey = 8 + 10 * (n - 232);
    return `rgb(${grey}, ${grey}, ${grey})`;
  }
  const level = (place: number) =>
    [0, 95, 135, 175, 215, 255][Math.floor((n - 16) / place) % 6];
  return `rgb(${level(36)}, ${level(6)}, ${level(1)})`;
}

/** A line as nodes: text nodes where it is unstyled, else spans; matches are highlighted. */
export function nodes(line: string, search = ''): Node[] {
  return styledTexts(line).flatMap(styledText => {
    const { text, ...style } = styledText;
    const inner = highlightMatches(text, search);
    if (Object.values(style).every(value => !value)) {
      return inner;
    }
    const span = document.createElement('span');
    span.style.color = cssColor(styledText.color);
    span.style.backgroundColor = cssColor(styledText.background);
    span.style.fontWeight = styledText.bold ? 'bold' : '';
    span.style.opacity = styledText.faint ? '0.7' : '';
    span.style.fontStyle = styledText.italic ? 'italic' : '';
    span.style.textDecoration = styledText.underlined ? 'underline' : '';
    span.append(...inner);
    return [span];
  });
}

function highlightMatches(text: string, search: string): Node[] {
  const found: Node[] = [];
  const wanted = search.toLowerCase();
  let at = 0;
  let next = wanted ? text.toLowerCase().indexOf(wanted) : -1;
  while (next >= 0) {
    const node = document.createElement('mark');
    node.textContent = text.slice(next, next + wanted.length);
    found.push(document.createTextNode(text.slice(at, next)), node);
    at = next + wanted.length;
    next = text.toLowerCase().indexOf(wanted, at);
  }
  return [...found, document.createTextNode(text.slice(at))];
}
