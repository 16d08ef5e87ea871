import { describe, expect, it } from 'vitest';
import { cssColour, nodes, pieces, uncoloured } from './ansi';

const E = '\u001b[';

function shown(line: string, search = ''): string {
  const node = document.createElement('div');
  node.append(...nodes(line, search));
  return node.innerHTML;
}

describe('pieces', () => {
  it('cuts a line where its style changes', () => {
    const found = pieces(`a${E}31mred${E}1m bold${E}0m plain`);
    expect(found.map(({ text, colour, bold }) => [text, colour, bold])).toEqual([
      ['a', '', false],
      ['red', '1', false],
      [' bold', '1', true],
      [' plain', '', false]
    ]);
  });

  it.each([
    ['31', { colour: '1' }],
    ['92', { colour: '10' }],
    ['44', { ground: '4' }],
    ['103', { ground: '11' }],
    ['38;5;208', { colour: '208' }],
    ['48;2;1;2;3', { ground: 'rgb(1, 2, 3)' }],
    ['1;4;33', { bold: true, underlined: true, colour: '3' }],
    ['2', { faint: true }],
    ['3', { italic: true }],
    ['31;39', { colour: '' }],
    ['1;2;22', { bold: false, faint: false }],
    ['3;4;23;24', { italic: false, underlined: false }],
    ['31;', { colour: '' }],
    ['7;9;55', { colour: '' }],
    ['38', { colour: '' }]
  ])('reads %s', (code, style) => {
    expect(pieces(`${E}${code}mx`)[0]).toMatchObject(style);
  });
});

describe('nodes', () => {
  it('never becomes markup', () => {
    expect(shown('<b onclick="x">&amp;')).toBe('&lt;b onclick="x"&gt;&amp;amp;');
    expect(shown(`${E}31m<script>`)).toContain('&lt;script&gt;');
  });

  it('marks what was searched for, whatever the case, also in colour', () => {
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
  ])('%s is %s', (colour, css) => {
    expect(cssColour(colour)).toBe(css);
  });

  it('can be left out', () => {
    expect(uncoloured(`a${E}31;1mb${E}mc`)).toBe('abc');
  });
});
