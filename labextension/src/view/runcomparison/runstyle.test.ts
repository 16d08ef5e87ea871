import { expect, test } from 'vitest';

import { setSample } from '../linestyle';
import { runStyle } from './runstyle';

test('each of the most runs that are compared looks different', () => {
  const styles = Array.from({ length: 32 }, (_, index) => runStyle(index));
  expect(new Set(styles.map(style => JSON.stringify(style))).size).toBe(32);
  expect(styles.slice(0, 10).every(({ dash }) => dash === '')).toBe(true);
  expect(styles[10]).toEqual({ color: styles[0].color, dash: '7 4' });
});

test('the sample of a line has its dashes', () => {
  const node = document.createElement('span');
  setSample(node, runStyle(0));
  expect(node.hasAttribute('data-dash')).toBe(false);
  setSample(node, runStyle(11));
  expect(node.dataset.dash).toBe('7 4');
  expect(node.style.getPropertyValue('--nbmgpu-dashes')).toBe(
    'repeating-linear-gradient(90deg, #e08b00 0px 7px, transparent 7px 11px)'
  );
});
