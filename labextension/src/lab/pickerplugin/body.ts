import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { mountPicker, type IPickerSource } from '../../picker';

/** The picker view as the body of a dialog. */
export class PickerBody extends Widget {
  constructor(
    private readonly source: IPickerSource,
    private readonly trans: TranslationBundle
  ) {
    super();
  }

  /** Mount late: a dialog styles all inputs that exist when it is created. */
  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.view = mountPicker(this.node, this.source, this.trans);
  }

  protected override onBeforeDetach(message: Message): void {
    this.view?.dispose();
    super.onBeforeDetach(message);
  }

  private view: { dispose(): void } | null = null;
}
