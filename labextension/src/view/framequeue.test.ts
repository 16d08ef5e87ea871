import { expect, test, vi } from 'vitest';

import { FrameQueue } from './framequeue';

const frame = () => new Promise(resolve => requestAnimationFrame(resolve));

/** A callback that takes 10 ms. */
function slow() {
  return vi.fn(() => {
    const end = performance.now() + 10;
    let now = 0;
    do {
      now = performance.now();
    } while (now < end);
  });
}

test('callbacks that take long are spread over frames, in order', async () => {
  const queue = new FrameQueue();
  const [first, second] = [slow(), slow()];
  queue.add(first);
  queue.add(second);
  queue.add(first); // still once
  expect(first).not.toHaveBeenCalled();
  await frame();
  expect([first.mock.calls.length, second.mock.calls.length]).toEqual([1, 0]);
  await frame();
  expect([first.mock.calls.length, second.mock.calls.length]).toEqual([1, 1]);
});

test('a callback that is deleted does not run, and others do', async () => {
  const queue = new FrameQueue();
  const [gone, other] = [vi.fn(), vi.fn()];
  queue.add(gone);
  queue.add(other);
  queue.delete(gone);
  await frame();
  expect(gone).not.toHaveBeenCalled();
  expect(other).toHaveBeenCalledOnce();
});
