import { expect, test } from 'vitest';

import type { CsvRequest } from '../generated/report';
import { allRows } from './csvdownload';

test('pages are requested one after another, with the columns of the first', async () => {
  const requests: CsvRequest[] = [];
  const shares: number[] = [];
  const text = await allRows(
    request => {
      requests.push(request);
      const step = request.after + 1;
      const title = request.columns.length ? '' : 'step,loss\n';
      return Promise.resolve({
        text: `${title}${step},0.5\n`,
        columns: ['step', 'loss'],
        last: step,
        left: 2 - step
      });
    },
    0,
    share => shares.push(share)
  );
  expect(text).toBe('step,loss\n0,0.5\n1,0.5\n2,0.5\n');
  expect(requests).toEqual([
    { after: -1, columns: [] },
    { after: 0, columns: ['step', 'loss'] },
    { after: 1, columns: ['step', 'loss'] }
  ]);
  expect(shares.at(-1)).toBe(1);
  expect(shares).toEqual([...shares].sort());
});

test('a page that does not arrive ends the download', async () => {
  const request = () => Promise.reject(new Error('the kernel does not respond'));
  await expect(allRows(request, 0, () => undefined)).rejects.toThrow('not respond');
});
