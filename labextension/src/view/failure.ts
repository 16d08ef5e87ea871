import type { Cause, OtherRank } from '../generated/report';
import { nodes } from './ansi';
import { make, withCode } from './dom';
import { foldable } from './foldable';
import type { ISection, ISectionContext, ISectionView } from './section';
import type { ITranslate } from './source';
import { rankText, stateText } from './words';

/** The failure of a run: rank, exception, line, likely cause and remedy. */
export const failure: ISection = { shows: ['failure'], create };

function create({ trans, read }: ISectionContext): ISectionView {
  const node = make('section', 'failure', { role: 'alert' });
  let shown = '';
  const update = () => {
    const cause = read('failure');
    node.hidden = !cause;
    const text = JSON.stringify(cause);
    if (text !== shown) {
      shown = text; // redrawn only if it differs, so that expanded details stay expanded
      node.replaceChildren(...(cause ? card(cause, trans) : []));
    }
  };
  return { node, update };
}

function card(cause: Cause, trans: ITranslate): Node[] {
  const origin = rankText(cause.origin, trans);
  const headline = origin ? trans.__('%1 failed', origin) : trans.__('The run failed');
  const parts: Node[] = [
    make('div', 'failure-title', {}, headline),
    make('div', 'failure-error', {}, cause.error)
  ];
  if (cause.context.length) {
    parts.push(excerpt(cause, trans));
  }
  if (cause.explanation) {
    parts.push(
      make(
        'p',
        'failure-explanation',
        {},
        make('b', '', {}, trans.__('Likely cause: ')),
        ...withCode(cause.explanation)
      )
    );
  }
  if (cause.remedy) {
    parts.push(
      make(
        'p',
        'remedy',
        {},
        make('b', '', {}, trans.__('Try: ')),
        ...withCode(cause.remedy)
      )
    );
  }
  if (cause.traceback) {
    parts.push(foldable(trans.__('Traceback of %1', origin), trace(cause.traceback)));
  }
  const others = cause.others.filter(other => other.label);
  if (others.length) {
    parts.push(
      foldable(
        trans.__(
          'Other ranks (%1)',
          others.reduce((sum, other) => sum + 1 + other.alike, 0)
        ),
        ...others.map(other => otherRank(other, trans))
      )
    );
  }
  return parts;
}

/** The cell's lines around the failing line. */
function excerpt(cause: Cause, trans: ITranslate): HTMLElement {
  const lines = cause.context.map(({ number, text, failing }) => {
    const row = make(
      'div',
      'code-line',
      {},
      make('span', 'code-number', {}, String(number))
    );
    row.append(make('code', '', {}, text || ' '));
    if (failing) {
      row.dataset.failing = '';
      row.setAttribute(
        'aria-label',
        trans.__('line %1, which failed: %2', number, text.trim())
      );
      row.setAttribute('role', 'mark');
    }
    return row;
  });
  const label = trans.__('The cell around line %1', cause.number);
  return make(
    'div',
    'code',
    { role: 'group', 'aria-label': label, tabindex: '0' },
    ...lines
  );
}

function trace(text: string): HTMLElement {
  const lines = text.split('\n').flatMap(line => [...nodes(line), '\n']);
  return make('pre', 'trace', { tabindex: '0' }, ...lines);
}

function otherRank(other: OtherRank, trans: ITranslate): HTMLElement {
  const name = other.alike
    ? trans.__('rank %1 and %2 more', other.rank, other.alike)
    : trans.__('rank %1', other.rank);
  const text = [`${name}: ${stateText(other.label, trans)}`, other.error]
    .filter(Boolean)
    .join('. ');
  if (!other.traceback) {
    return make('div', 'other', {}, text);
  }
  return foldable(text, trace(other.traceback));
}
