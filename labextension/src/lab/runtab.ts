import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';

import { ServerRunSource, type RunsServer } from '../server';
import { mountRunView } from '../view';
import { headlineText } from '../view/words';
import { TabContent } from './maintab';
import { connectionLostText } from './messages';
import { formatTime } from './times';

/** The callbacks of a tab. */
export interface ITabActions {
  /** Open the folder of the run in the file browser. */
  openFolder(folder: string): void;
  /** Show an error of the server. */
  showError(reason: Error): void;
}

/** A run in a tab: the same view as in the notebook, with data from the server. */
export class RunTab extends TabContent {
  constructor(
    readonly runId: string,
    server: RunsServer,
    actions: ITabActions,
    private readonly trans: TranslationBundle,
    private readonly language: string,
    title: string
  ) {
    super();
    this.title.label = title || runId; // until the tab is shown
    const connectionLost = connectionLostText(trans);
    this.source = new ServerRunSource(server, runId, {
      onError: actions.showError,
      onConnection: state => this.setNotice(state === 'live' ? '' : connectionLost),
      onGone: reason => this.setNotice(reason)
    });
    this.source.onChange(['about'], () => this.setTitle());
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

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.source.setVisible(true);
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this.source.setVisible(false);
  }

  private setTitle(): void {
    const about = this.source.get('about');
    if (about) {
      const time = formatTime(about.created, this.language, 'short');
      const { name, notebook } = about;
      const headline = headlineText(about.headline, this.trans);
      this.title.label = name || `${headline}, ${time}`;
      this.title.caption = [name, headline, notebook, time, this.runId]
        .filter(text => text)
        .join('\n');
    }
  }

  private readonly source: ServerRunSource;
  private readonly view: { dispose(): void };
}
