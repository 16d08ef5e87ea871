import { expect, test } from 'vitest';

import { english, type ITranslate } from './source';
import {
  barText,
  batchText,
  bestTitle,
  deviceText,
  headlineText,
  metricText,
  rankText,
  remainingText,
  sentText,
  stateText,
  titleText,
  verifiedText
} from './words';

/** Marks what is translated. */
const marked: ITranslate = {
  __: (text, ...values) => `<${english.__(text, ...values)}>`,
  _n: (...all) => `<${english._n(...all)}>`
};

const COMPARED = "compared: the gradients are one device's (not what the cell prints)";

test.each([
  [stateText, 'finished', '<finished>'],
  [stateText, 'timed out', '<timed out>'],
  [stateText, 'failed (exit 1)', '<failed> (<exit 1>)'],
  [stateText, 'ended (SIGKILL)', '<ended> (SIGKILL)'],
  [stateText, '2 not started', '2 <not started>'],
  [stateText, '7 running, 1 failed (exit 1)', '7 <running>, 1 <failed> (<exit 1>)'],
  [metricText, 'samples/s', '<samples/s>'],
  [metricText, 'steps', 'steps'],
  [titleText, 'step time', '<step time>'],
  [titleText, '--tag', '--tag'],
  [bestTitle, 'lowest loss', '<lowest loss>'],
  [rankText, 'rank 1', '<rank 1>'],
  [rankText, 'mean', '<mean>'],
  [remainingText, 'about 3:05 left', '<about 3:05 left>'],
  [remainingText, 'about 3:05 left in epoch 2', '<about 3:05 left in epoch 2>'],
  [headlineText, 'none on 1 rank (cpu)', '<none on 1 rank> (cpu)'],
  [headlineText, 'tp on 4 ranks (cuda:0-3), dp=2', '<tp on 4 ranks> (cuda:0-3), dp=2'],
  [headlineText, 'ddp on 4 ranks of 2 nodes (cpu)', '<ddp on 4 ranks of 2 nodes> (cpu)'],
  [
    headlineText,
    'ddp on 2 ranks (cpu), ranks held: 52 MiB',
    '<<ddp on 2 ranks> (cpu), ranks held: 52 MiB>'
  ],
  [barText, 'epoch 8 of 8', '<epoch 8 of 8>'],
  [barText, 'epoch 8', '<epoch 8>'],
  [barText, 'epoch 8 · batches', '<epoch 8> · batches'],
  [barText, 'my epochs', 'my epochs'],
  [sentText, '3.0 MiB in 1 collective', '<3.0 MiB in 1 collective>'],
  [sentText, '3.0 MiB', '3.0 MiB'],
  [deviceText, '2 cores', '<2 cores>'],
  [deviceText, 'NVIDIA H100', 'NVIDIA H100'],
  [verifiedText, `1 optimizer step ${COMPARED}`, `<<1 optimizer step> ${COMPARED}>`],
  [
    verifiedText,
    `first 8 optimizer steps ${COMPARED}; then time was up`,
    `<<<first 8 optimizer steps> ${COMPARED}>; then time was up>`
  ],
  [
    verifiedText,
    'not compared with one device: no',
    '<not compared with one device: no>'
  ],
  [batchText, 'batch 8 on one rank', '<batch 8 on one rank>'],
  [
    batchText,
    'global batch 64 = 2 x batch 32 on one rank',
    '<global batch 64 = 2 x batch 32 on one rank>'
  ],
  [
    batchText,
    'global batch 64 = 2 ranks x 16 x 2 batches; batch 1 on one rank',
    '<global batch 64> = <2 ranks> x 16 x <2 batches>; <batch 1 on one rank>'
  ],
  [
    batchText,
    'global batch 9 on 2 shards: 4 or 5 each of 3 batches',
    '<<global batch 9 of 3 batches> on <2 shards>: 4 or 5 each>'
  ],
  [
    batchText,
    'global batch 9 of 3 batches, all of it on every rank',
    '<<global batch 9 of 3 batches>, all of it on every rank>'
  ],
  [
    batchText,
    'nothing is split: every rank reads every batch of 9',
    '<nothing is split: every rank reads every batch of 9>'
  ]
])('%o translates %s', (translate, text, expected) => {
  expect(translate(text, marked)).toBe(expected);
});

test('what is translated into English remains as it is', () => {
  const text = 'first 8 optimizer steps ' + COMPARED;
  expect(verifiedText(text, english)).toBe(text);
  expect(batchText('global batch 64 = 2 ranks x 32', english)).toBe(
    'global batch 64 = 2 ranks x 32'
  );
});
