import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { ServerRunSource, type RunsServer } from '../server';
import { mountRunView } from '../view';
import { mgpuIcon } from './icons';
import { connectionLostText } from './messages';

/** What a tab asks of the application around it. */
export interface ITabActions {
  /** Show the folder of the run among the files. */
  openFolder(folder: string): void;
  /** Say what the server could not do. */
  complain(reason: Error): void;
}

/** One run in a tab: the view that the notebook has, fed by the server. */
export class RunTab extends Widget {
  constructor(
    readonly runId: string,
    server: RunsServer,
    actions: ITabActions,
    trans: TranslationBundle
  ) {
    super();
    this.addClass('nbmgpu-RunTab');
    this.title.icon = mgpuIcon;
    this.title.label = runId;
    this.node.tabIndex = -1;
    this.notice.className = 'nbmgpu-RunTab-notice';
    this.notice.setAttribute('role', 'status');
    this.node.append(this.notice);
    this.say('');
    const silence = connectionLostText(trans);
    this.source = new ServerRunSource(server, runId, {
      onProblem: actions.complain,
      onConnection: link => this.say(link === 'live' ? '' : silence),
      onGone: reason => this.say(reason)
    });
    const named = this.source.onChange(parts => {
      if (parts.includes('about')) {
        this.name();
        named();
      }
    });
    this.view = mountRunView(
      this.node,
      Object.assign(this.source, {
        openFolder: () => actions.openFolder(this.source.get('about')?.folder ?? '')
      }),
      trans
    );
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this.view.dispose();
      this.source.dispose();
      super.dispose();
    }
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this.node.focus();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.source.setVisible(true);
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this.source.setVisible(false);
  }

  private name(): void {
    const about = this.source.get('about');
    if (about) {
      const begun = new Date(about.created * 1000);
      const time = begun.toLocaleTimeString([], { timeStyle: 'short' });
      this.title.label = `${about.headline}, ${time}`;
      this.title.caption = `${about.headline}\n${about.notebook}\n${this.runId}`;
    }
  }

  private say(words: string): void {
    this.notice.textContent = words;
    this.notice.hidden = !words;
  }

  private readonly notice = document.createElement('div');
  private readonly source: ServerRunSource;
  private readonly view: { dispose(): void };
}
