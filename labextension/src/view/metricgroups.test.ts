import { expect, test } from 'vitest';

import type { CurveLine } from '../generated/report';
import { groupMetrics } from './metricgroups';

function names(...metrics: string[]): [string, string[]][] {
  const lines = metrics.map(name => ({ name }) as CurveLine);
  return groupMetrics(lines).map(group => [group.name, group.lines.map(l => l.name)]);
}

test('metrics of training and evaluation share a chart', () => {
  expect(names('loss', 'lr', 'eval_loss', 'train/acc', 'val/acc')).toEqual([
    ['loss', ['loss', 'eval_loss']],
    ['lr', ['lr']],
    ['acc', ['train/acc', 'val/acc']]
  ]);
});

test('a metric without a partner keeps its name', () => {
  expect(names('val_f1', 'test', 'trained_loss', 'val/top/1')).toEqual([
    ['val_f1', ['val_f1']],
    ['test', ['test']],
    ['trained_loss', ['trained_loss']],
    ['val/top/1', ['val/top/1']]
  ]);
});
