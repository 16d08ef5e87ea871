import { describe, expect, it } from 'vitest';
import { cssColor, nodes, styledTexts, withoutColors } from './ansi';

const E = '\u001b[';

function shown(line: string, search = ''): string {
  const node = document.createElement('div');
  node.append(...nodes(line, search));
  return node.innerHTML;
}

describe('styledTexts', () => {
  it('splits a line where its style changes', () => {
    const found = styledTexts(`a${E}31mred${E}1m bold${E}0m plain`);
    expect(found.map(({ text, color, bold }) => [text, color, bold])).toEqual([
      ['a', '', false],
      ['red', '1', false],
      [' bold', '1', true],
      [' plain', '', false]
    ]);
  });

  it.each([
    ['31', { color: '1' }],
    ['92', { color: '10' }],
    ['44', { background: '4' }],
    ['103', { background: '11' }],
    ['38;5;208', { color: '208' }],
    ['48;2;1;2;3', { background: 'rgb(1, 2, 3)' }],
    ['1;4;33', { bold: true, underlined: true, color: '3' }],
    ['2', { faint: true }],
    ['3', { italic: true }],
    ['31;39', { color: '' }],
    ['1;2;22', { bold: false, faint: false }],
    ['3;4;23;24', { italic: false, underlined: false }],
    ['31;', { color: '' }],
    ['7;9;55', { color: '' }],
    ['38', { color: '' }]
  ])('reads %s', (code, style) => {
    expect(styledTexts(`${E}${code}mx`)[0]).toMatchObject(style);
  });
});

describe('nodes', () => {
  it('never becomes markup', () => {
    expect(shown('<b onclick="x">&amp;')).toBe('&lt;b onclick="x"&gt;&amp;amp;');
    expect(shown(`${E}31m<script>`)).toContain('&lt;script&gt;');
  });

  it('highlights matches, ignoring case, also in color', () => {
    expect(shown('Loss loss', 'LOSS')).toBe('<mark>Loss</mark> <mark>loss</mark>');
    expect(shown(`${E}1mloss 1`, 'loss')).toContain('<mark>loss</mark> 1');
    expect(shown('aaa', 'aa')).toBe('<mark>aa</mark>a');
  });
});

describe('colours', () => {
  it.each([
    ['', ''],
    ['1', 'var(--nbmgpu-ansi-1)'],
    ['16', 'rgb(0, 0, 0)'],
    ['231', 'rgb(255, 255, 255)'],
    ['208', 'rgb(255, 135, 0)'],
    ['232', 'rgb(8, 8, 8)'],
    ['rgb(1, 2, 3)', 'rgb(1, 2, 3)']
  ])('%s is %s', (color, css) => {
    expect(cssColor(color)).toBe(css);
  });

  it('can be removed', () => {
    expect(withoutColors(`a${E}31;1mb${E}mc`)).toBe('abc');
  });
});
