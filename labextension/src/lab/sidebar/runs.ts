import type { TranslationBundle } from '@jupyterlab/translation';
import { h, type VirtualElement } from '@lumino/virtualdom';

import type { RunLine } from '../../generated/report';
import { formatDuration, formatSeconds } from '../../view/format';
import { headlineText, remainingText, stateText } from '../../view/words';
import { CommandIDs } from '../commandids';
import { isRunning } from '../runsstate';
import { sparkline } from '../sparkline';
import { formatAge, formatPercent } from '../format';
import { formatDate, formatTime } from '../times';

/** The dependencies of the list. */
export interface IListContext {
  readonly trans: TranslationBundle;
  /** For dates and times. */
  readonly language: string;
  /** In seconds since the epoch. */
  readonly now: number;
  /** Execute a command on a run. */
  readonly execute: (command: string, id: string) => void;
  /** The icon of a command. */
  readonly icon: (command: string) => VirtualElement.IRenderer | undefined;
  /** Select a run for a comparison, or not. */
  readonly select: (id: string, selected: boolean) => void;
}

const NO_ICON: VirtualElement.IRenderer = { render: () => undefined };
const CURVE = { width: 88, height: 24 };

/** A card for each run: running ones first, then newest first. */
export function runList(runs: readonly RunLine[], context: IListContext): VirtualElement {
  return h.ul(
    { className: 'nbmgpu-Runs' },
    [...runs.filter(isRunning), ...runs.filter(run => run.status.over)].map(run =>
      card(run, context)
    )
  );
}

function card(run: RunLine, context: IListContext): VirtualElement {
  const { trans, execute } = context;
  const { name, note } = run.labels;
  const headline = headlineText(run.headline, trans);
  return h.li(
    {
      key: run.id,
      className: 'nbmgpu-RunCard',
      dataset: { tone: run.status.tone, run: run.id }
    },
    h.div(
      { className: 'nbmgpu-RunCard-head' },
      checkbox(run, context),
      h.span({ className: 'nbmgpu-RunCard-dot', 'aria-hidden': 'true' }),
      h.button(
        {
          className: 'nbmgpu-RunCard-title',
          title: [trans.__('Open run %1', run.id), note].filter(Boolean).join('\n\n'),
          onclick: () => execute(CommandIDs.openRun, run.id)
        },
        name || run.title || headline
      ),
      h.span({ className: 'nbmgpu-RunCard-state' }, stateText(run.status.label, trans))
    ),
    h.div({ className: 'nbmgpu-RunCard-where' }, where(run, context)),
    tags(run),
    h.div(
      { className: 'nbmgpu-RunCard-body' },
      h.div(
        { className: 'nbmgpu-RunCard-facts' },
        h.div({ className: 'nbmgpu-RunCard-headline' }, headline),
        h.div({ className: 'nbmgpu-RunCard-when' }, when(run, context))
      ),
      curve(run, trans)
    ),
    progress(run, trans),
    run.failure ? h.div({ className: 'nbmgpu-RunCard-failure' }, run.failure) : '',
    h.div({ className: 'nbmgpu-RunCard-actions' }, actions(run, context))
  );
}

/** Selects a run for a comparison. The sidebar sets which are checked. */
function checkbox(run: RunLine, { trans, select }: IListContext): VirtualElement {
  return h.input({
    type: 'checkbox',
    className: 'nbmgpu-RunCard-select',
    title: trans.__('Select to compare'),
    'aria-label': trans.__('Select run %1 to compare', run.id),
    onchange: event => select(run.id, (event.currentTarget as HTMLInputElement).checked)
  });
}

function tags({ labels }: RunLine): VirtualElement | string {
  if (!labels.tags.length) {
    return '';
  }
  return h.div(
    { className: 'nbmgpu-RunCard-tags' },
    ...labels.tags.map(tag => h.span({ className: 'nbmgpu-RunCard-tag' }, tag))
  );
}

/** Notebook and start time; the date as well if the run did not start today. */
function where(run: RunLine, { trans, now, language }: IListContext): string {
  const name = run.notebook.split('/').pop() || trans.__('not from a notebook');
  const [start, today] = [run.created, now].map(seconds => new Date(seconds * 1000));
  const time = formatTime(run.created, language, 'medium');
  const sameDay = start.toDateString() === today.toDateString();
  const date = formatDate(run.created, language);
  return `${name} · ${sameDay ? time : `${date} ${time}`}`;
}

function when(run: RunLine, { trans, now }: IListContext): string {
  if (!isRunning(run)) {
    return trans.__(
      '%1 · took %2',
      formatAge(run.created, now, trans),
      formatSeconds(run.duration)
    );
  }
  const parts = [
    formatDuration(run.duration),
    remainingText(run.status.remaining, trans)
  ];
  return [...parts, run.kernel.alive ? '' : trans.__('kernel not running')]
    .filter(Boolean)
    .join(' · ');
}

function curve(run: RunLine, trans: TranslationBundle): VirtualElement {
  const path = sparkline(run.curve.points, CURVE.width, CURVE.height);
  const text = run.curve.name ? `${run.curve.name} ${run.curve.last}` : '';
  const label = path
    ? trans.__('Curve of %1, newest value %2', run.curve.name, run.curve.last)
    : trans.__('No curve yet');
  return h.div(
    { className: 'nbmgpu-RunCard-curve' },
    h.span(
      { className: 'nbmgpu-Sparkline', role: 'img', 'aria-label': label },
      { render: host => draw(host, path) }
    ),
    h.span({ className: 'nbmgpu-RunCard-metric' }, text)
  );
}

/** Lumino's virtual DOM does not support SVG, so the drawing is added to the DOM directly. */
function draw(host: HTMLElement, path: string): void {
  if (host.dataset.path === path) {
    return;
  }
  host.dataset.path = path;
  const { width, height } = CURVE;
  if (!path) {
    host.replaceChildren();
    return;
  }
  const svg = svgElement('svg', {
    viewBox: `-1 -2 ${width + 2} ${height + 4}`,
    'aria-hidden': 'true'
  });
  svg.append(svgElement('path', { d: path }));
  host.replaceChildren(svg);
}

function svgElement(name: string, attributes: Record<string, string>): SVGElement {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) {
    element.setAttribute(key, value);
  }
  return element;
}

function progress(run: RunLine, trans: TranslationBundle): VirtualElement | string {
  if (!isRunning(run) || run.progress < 0) {
    return '';
  }
  const text = formatPercent(run.progress);
  return h.div(
    {
      className: 'nbmgpu-RunCard-progress',
      role: 'progressbar',
      title: trans.__(
        '%1 of the run, or of its epoch if the number of epochs is unknown',
        text
      ),
      'aria-label': trans.__('Progress'),
      'aria-valuemin': '0',
      'aria-valuemax': '100',
      'aria-valuenow': String(Math.round(100 * run.progress))
    },
    h.span({ style: { width: `${100 * run.progress}%` } })
  );
}

function actions(run: RunLine, { trans, execute, icon }: IListContext): VirtualElement[] {
  const action = (command: string, text: string): VirtualElement =>
    h.button(
      {
        key: command,
        className: 'nbmgpu-RunCard-action',
        title: text,
        'aria-label': trans.__('%1: run %2', text, run.id),
        onclick: () => execute(command, run.id)
      },
      h.span(icon(command) ?? NO_ICON)
    );
  const end = isRunning(run)
    ? action(
        CommandIDs.stopRun,
        run.status.label === 'stopping' ? trans.__('Force stop') : trans.__('Stop')
      )
    : action(CommandIDs.deleteRun, trans.__('Delete'));
  return [
    action(CommandIDs.attachRun, trans.__('Follow in a notebook')),
    ...(run.notebook
      ? [action(CommandIDs.revealNotebook, trans.__('Show its notebook'))]
      : []),
    action(CommandIDs.openFolder, trans.__('Open its folder')),
    action(CommandIDs.labelRun, trans.__('Name and tag it')),
    // Delete takes the place of Stop, so it asks for confirmation.
    h.span({ key: 'gap', className: 'nbmgpu-RunCard-gap' }),
    end
  ];
}
