import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ISettingRegistry } from '@jupyterlab/settingregistry';

import { ISettings } from './tokens';

/** The defaults, as in schema/settings.json. */
const DEFAULTS = { line: '%%mgpu --strategy ddp', notifications: true };

class Settings implements ISettings {
  get line(): string {
    return this.value('line') ?? DEFAULTS.line;
  }

  get notifications(): boolean {
    return this.value('notifications') ?? DEFAULTS.notifications;
  }

  source: ISettingRegistry.ISettings | null = null;

  private value<T>(key: keyof typeof DEFAULTS): T | undefined {
    return this.source?.get(key).composite as T | undefined;
  }
}

/** Provides the user settings. */
export const settingsPlugin: JupyterFrontEndPlugin<ISettings> = {
  id: 'nbmgpu:settings',
  description: 'The settings of nbmgpu, with its menu and toolbar entries.',
  autoStart: true,
  provides: ISettings,
  optional: [ISettingRegistry],
  activate: (_app, registry: ISettingRegistry | null): ISettings => {
    const settings = new Settings();
    registry?.load(settingsPlugin.id).then(
      loaded => (settings.source = loaded),
      reason => console.warn('nbmgpu uses its default settings:', reason)
    );
    return settings;
  }
};
