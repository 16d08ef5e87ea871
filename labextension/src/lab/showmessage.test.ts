import { Notification } from '@jupyterlab/apputils';
import { expect, test, vi } from 'vitest';

import { showError } from './showmessage';

// jsdom lacks what the dialogs of apputils need.
vi.mock('@jupyterlab/apputils', () => ({ Notification: { emit: vi.fn() } }));

test('an error is shown for some seconds, not only counted at the bell', () => {
  showError({ message: 'Its ranks are held.', hint: 'Try: nbmgpu.free()' });
  const text = 'Its ranks are held. Try: nbmgpu.free()';
  expect(Notification.emit).toHaveBeenCalledExactlyOnceWith(text, 'error', {
    autoClose: 8000
  });
});
