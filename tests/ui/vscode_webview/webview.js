// What Jupyter's extension for VS Code does in the page that has a notebook's outputs: it connects
// the widget manager of its package @vscode/jupyter-ipywidgets8 to a kernel, and displays outputs.

import {
  CommsOverSubshells,
  KernelManager,
  ServerConnection
} from '@jupyterlab/services';

const WIDGET = 'application/vnd.jupyter.widget-view+json';

/** How the widget manager loads the module of a widget that it does not contain. */
const scriptLoader = {
  widgetsRegisteredInRequireJs: new Set(),

  // The extension reads the module's address in the script that Jupyter Notebook 6 would load.
  async loadWidgetScript(name) {
    const script = await fetch(`nbextensions/${name}/extension.js`);
    const [, address] = new RegExp(`\\b${name}: "(.+)"`).exec(await script.text());
    window.requirejs.config({ paths: { [name]: address } });
  },

  successHandler() {},

  errorHandler(className, moduleName, moduleVersion, error) {
    console.error(`${moduleName} ${moduleVersion} has no ${className}:`, error);
  }
};

async function start({ baseUrl, token }) {
  const serverSettings = ServerConnection.makeSettings({
    baseUrl,
    wsUrl: baseUrl.replace('http', 'ws'),
    token,
    appendToken: true
  });
  const kernel = await new KernelManager({ serverSettings }).startNew({
    name: 'python3'
  });
  // VS Code sends all messages to the main shell, also those of widgets while a cell runs.
  kernel.commsOverSubshells = CommsOverSubshells.Disabled;

  const { activate } = await import(new URL('ipywidgets.js', document.baseURI).href);
  activate();
  window.vscIPyWidgets8.load();
  const { WidgetManager } = window.vscIPyWidgets;
  return {
    kernel,
    manager: new WidgetManager(kernel, undefined, scriptLoader, () => {})
  };
}

let started;

/** Run a cell, with its outputs in a section of the page; return the reply's status. */
async function run(code) {
  const { kernel, manager } = await started;
  const section = document
    .querySelector('main')
    .appendChild(document.createElement('section'));
  const displays = new Map();
  const future = kernel.requestExecute({ code });
  future.onIOPub = ({ header, content }) => {
    switch (header.msg_type) {
      case 'display_data': {
        const output = section.appendChild(document.createElement('div'));
        displays.set(content.transient?.display_id, output);
        return show(content.data, output, manager);
      }
      case 'update_display_data':
        return show(content.data, displays.get(content.transient.display_id), manager);
      case 'stream':
        section.append(content.text);
    }
  };
  return (await future.done).content.status;
}

/** Show an output by the first of its MIME types that VS Code prefers. */
async function show(data, output, manager) {
  output.replaceChildren();
  output.className = '';
  if (data[WIDGET]) {
    output.className = 'cell-output-ipywidget-background';
    const model = await manager.get_model(data[WIDGET].model_id);
    const view = await manager.create_view(model, { el: output });
    await manager.display_view(data, view, { node: output });
  } else if (data['text/html']) {
    output.innerHTML = data['text/html'];
  } else {
    output.textContent = data['text/plain'];
  }
}

window.start = server => (started = start(server)).then(() => {});
window.run = run;
