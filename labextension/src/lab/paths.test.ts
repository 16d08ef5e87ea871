import { expect, test } from 'vitest';

import { relativePath } from './paths';

test.each([
  ['/home/me', '/home/me/a/b.ipynb', 'a/b.ipynb'],
  ['/home/me/', '/home/me/b.ipynb', 'b.ipynb'],
  ['/', '/b.ipynb', 'b.ipynb'],
  ['/home/me', '/home/me', ''],
  ['/home/me', '/home/mercy/b.ipynb', null],
  ['/home/me', '/tmp/runs/1', null],
  ['/home/me', 'b.ipynb', 'b.ipynb'],
  ['/home/me', '', null],
  ['', '/home/me/b.ipynb', null]
])('in %s, %s is %s', (root, path, expected) => {
  expect(relativePath(root, path)).toBe(expected);
});
