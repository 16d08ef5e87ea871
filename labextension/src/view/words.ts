// Labels that Python composes for the summary and for the browser, in the user's language.
import type { ITranslate } from './source';

type Groups = readonly string[];
type Pattern = readonly [RegExp, (trans: ITranslate, groups: Groups) => string];

/** The state of a run or of a rank: `finished`, `failed (exit 1)`, `7 running, 1 failed (exit 1)`. */
export function stateText(label: string, trans: ITranslate): string {
  const states = label.split(', ').map(each => {
    const [, count = '', state, how] = /^(\d+ )?(.*?)(?: \((.*)\))?$/.exec(each) ?? [];
    const word = stateWords(trans)[state] ?? state;
    return count + (how ? `${word} (${matched(how, EXITS, trans)})` : word);
  });
  return states.join(', ');
}

function stateWords(trans: ITranslate): Partial<Record<string, string>> {
  return {
    starting: trans.__('starting'),
    loading: trans.__('loading'),
    running: trans.__('running'),
    verifying: trans.__('verifying'),
    'starting again': trans.__('starting again'),
    stopping: trans.__('stopping'),
    collecting: trans.__('collecting'),
    finished: trans.__('finished'),
    failed: trans.__('failed'),
    'failed as well': trans.__('failed as well'),
    ended: trans.__('ended'),
    'not started': trans.__('not started'),
    stopped: trans.__('stopped'),
    'timed out': trans.__('timed out'),
    lost: trans.__('lost')
  };
}

const EXITS: Pattern[] = [
  [/^exit (\d+)$/, (trans, [code]) => trans.__('exit %1', code)],
  [/^signal (\d+)$/, (trans, [code]) => trans.__('signal %1', code)]
];

/** The name of a metric: that of the user, or of a rate. */
export function metricText(name: string, trans: ITranslate): string {
  const rates: Partial<Record<string, string>> = {
    'samples/s': trans.__('samples/s'),
    'tokens/s': trans.__('tokens/s')
  };
  return rates[name] ?? name;
}

/** The title of an option or a result in a comparison. */
export function titleText(title: string, trans: ITranslate): string {
  const titles: Partial<Record<string, string>> = {
    strategy: trans.__('strategy'),
    engine: trans.__('engine'),
    ranks: trans.__('ranks'),
    devices: trans.__('devices'),
    notebook: trans.__('notebook'),
    state: trans.__('state'),
    started: trans.__('started'),
    duration: trans.__('duration'),
    steps: trans.__('steps'),
    'step time': trans.__('step time'),
    'memory of a rank': trans.__('memory of a rank'),
    'GPU memory of a rank': trans.__('GPU memory of a rank')
  };
  return titles[title] ?? metricText(title, trans);
}

/** The title of a metric's best value: `lowest loss`. */
export function bestTitle(title: string, trans: ITranslate): string {
  return matched(title, BEST, trans);
}

const BEST: Pattern[] = [
  [/^lowest (.+)$/, (trans, [name]) => trans.__('lowest %1', name)],
  [/^highest (.+)$/, (trans, [name]) => trans.__('highest %1', name)]
];

/** What a line is of: `rank 1`, the `step` of all ranks, or their `mean`. */
export function rankText(name: string, trans: ITranslate): string {
  const all: Partial<Record<string, string>> = {
    step: trans.__('step'),
    lowest: trans.__('lowest'),
    mean: trans.__('mean'),
    highest: trans.__('highest')
  };
  return all[name] ?? matched(name, RANK, trans);
}

const RANK: Pattern[] = [
  [/^rank (\d+)$/, (trans, [rank]) => trans.__('rank %1', rank)],
  [/^rank (\d+) on (.+)$/, (trans, [rank, node]) => trans.__('rank %1 on %2', rank, node)]
];

/** The remaining time: `about 3:05 left in epoch 2`. */
export function remainingText(text: string, trans: ITranslate): string {
  return matched(text, REMAINING, trans);
}

const REMAINING: Pattern[] = [
  [
    /^about (.+) left in epoch (\d+)$/,
    (trans, [time, epoch]) => trans.__('about %1 left in epoch %2', time, epoch)
  ],
  [/^about (.+) left$/, (trans, [time]) => trans.__('about %1 left', time)]
];

/** Strategy, ranks and devices: `ddp on 4 ranks of 2 nodes (cuda:0-1)`; in lists, also held memory. */
export function headlineText(text: string, trans: ITranslate): string {
  const [, headline = text, held = ''] = HELD.exec(text) ?? [];
  const shown = matched(headline, HEADLINE, trans);
  return held ? trans.__('%1, ranks held: %2', shown, held) : shown;
}

const HELD = /^(.*), ranks held: (.*)$/;

const HEADLINE: Pattern[] = [
  [
    /^(\S+) on (\d+) ranks? of (\d+) nodes( \(.*)$/,
    (trans, [strategy, ranks, nodes, rest]) =>
      trans.__('%1 on %2 ranks of %3 nodes', strategy, ranks, nodes) + rest
  ],
  [
    /^(\S+) on (\d+) ranks?( \(.*)$/,
    (trans, [strategy, ranks, rest]) =>
      trans._n('%2 on %1 rank', '%2 on %1 ranks', Number(ranks), strategy) + rest
  ]
];

/** The label of a progress bar: `epoch 2 of 8`, `epoch 2 · batches`. */
export function barText(text: string, trans: ITranslate): string {
  return matched(text, BAR, trans);
}

const BAR: Pattern[] = [
  [
    /^epoch (\d+) of (\d+)$/,
    (trans, [epoch, epochs]) => trans.__('epoch %1 of %2', epoch, epochs)
  ],
  [
    /^epoch (\d+)( · .*)?$/,
    (trans, [epoch, rest = '']) => trans.__('epoch %1', epoch) + rest
  ]
];

/** What a rank sends per step: `3.0 MiB in 4 collectives`. */
export function sentText(text: string, trans: ITranslate): string {
  return matched(text, SENT, trans);
}

const SENT: Pattern[] = [
  [
    /^(.+) in (\d+) collectives?$/,
    (trans, [size, count]) =>
      trans._n('%2 in %1 collective', '%2 in %1 collectives', Number(count), size)
  ]
];

/** The name of a device: `2 cores`; other names are those of products. */
export function deviceText(label: string, trans: ITranslate): string {
  return matched(label, CORES, trans);
}

const CORES: Pattern[] = [
  [/^(\d+) cores?$/, (trans, [count]) => trans._n('%1 core', '%1 cores', Number(count))]
];

/** What was compared with one device; the reason why no more was is a sentence of Python. */
export function verifiedText(text: string, trans: ITranslate): string {
  return matched(text, VERIFIED, trans);
}

const COMPARED =
  "optimizer steps? compared: the gradients are one device's \\(not what the cell prints\\)";

const VERIFIED: Pattern[] = [
  [
    /^not compared with one device: (.*)$/s,
    (trans, [reason]) => trans.__('not compared with one device: %1', reason)
  ],
  [
    new RegExp(`^(?:(all|first) )?(\\d+) ${COMPARED}(?:; then (.*))?$`, 's'),
    (trans, [which = '', count, reason]) => {
      const steps = {
        all: () => trans.__('all %1 optimizer steps', count),
        first: () => trans.__('first %1 optimizer steps', count),
        '': () => trans._n('%1 optimizer step', '%1 optimizer steps', Number(count))
      }[which as 'all' | 'first' | '']();
      const compared = trans.__(
        "%1 compared: the gradients are one device's (not what the cell prints)",
        steps
      );
      return reason ? trans.__('%1; then %2', compared, reason) : compared;
    }
  ]
];

/** How batches are split, of each loader: `global batch 64 = 2 ranks x 32`. */
export function batchText(text: string, trans: ITranslate): string {
  return text
    .split('; ')
    .map(each => matched(each, BATCH, trans))
    .join('; ');
}

const BATCH: Pattern[] = [
  [
    /^batch (\d+) on one rank$/,
    (trans, [size]) => trans.__('batch %1 on one rank', size)
  ],
  [
    /^global batch (\d+) = (\d+) x batch (\d+) on one rank$/,
    (trans, groups) => trans.__('global batch %1 = %2 x batch %3 on one rank', ...groups)
  ],
  [
    /^nothing is split: every rank reads every batch of (\d+)$/,
    (trans, [size]) =>
      trans.__('nothing is split: every rank reads every batch of %1', size)
  ],
  [
    /^global batch (\d+)( of \d+ batches)?, all of it on every rank$/,
    (trans, [size, batches]) =>
      trans.__('%1, all of it on every rank', globalBatch(size, batches, trans))
  ],
  [
    /^global batch (\d+) on (\d+) (ranks|shards): (\d+) or (\d+) each( of \d+ batches)?$/,
    (trans, [size, count, unit, low, high, batches]) =>
      trans.__(
        '%1 on %2: %3 or %4 each',
        globalBatch(size, batches, trans),
        shards(count, unit, trans),
        low,
        high
      )
  ],
  [
    /^global batch (\d+) = (\d+) (ranks|shards) x (\d+)(?: x (\d+) batches)?$/,
    (trans, [size, count, unit, share, batches]) => {
      const parts = [shards(count, unit, trans), share];
      if (batches) {
        parts.push(trans.__('%1 batches', batches));
      }
      return `${globalBatch(size, '', trans)} = ${parts.join(' x ')}`;
    }
  ]
];

function globalBatch(
  size: string,
  batches: string | undefined,
  trans: ITranslate
): string {
  const [count] = /\d+/.exec(batches ?? '') ?? [];
  return count
    ? trans.__('global batch %1 of %2 batches', size, count)
    : trans.__('global batch %1', size);
}

function shards(count: string, unit: string, trans: ITranslate): string {
  return unit === 'ranks' ? trans.__('%1 ranks', count) : trans.__('%1 shards', count);
}

/** The translation by the first pattern that matches, or the text itself. */
function matched(text: string, patterns: readonly Pattern[], trans: ITranslate): string {
  for (const [pattern, translate] of patterns) {
    const found = pattern.exec(text);
    if (found) {
      return translate(trans, found.slice(1));
    }
  }
  return text;
}
