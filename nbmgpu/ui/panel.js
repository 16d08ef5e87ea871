// Draws a RunPanel (panel.py).  All text comes from notebooks and ranks: it only ever
// becomes text nodes and attributes, never markup.
// @ts-check

/**
 * What the kernel sends; see RunPanel in panel.py.
 * @typedef {{id: string, headline: string, batch: string}} About
 * @typedef {{state: string, word: string, tone: string, elapsed: string, over: boolean}} Status
 * @typedef {{who: string, what: string, number: number, line: string}} Cause
 * @typedef {{key: string, label: string, count: string, fraction: number}} Bar
 * @typedef {{name: string, last: string, sound: boolean, steps: number, points: DataView}} Curve
 * @typedef {{rank: number, word: string, tone: string, device: string, detail: string}} Mark
 *
 * The part of an anywidget model that is used here.
 * @typedef {object} Model
 * @property {(trait: string) => any} get
 * @property {(trait: string, value: any) => void} set
 * @property {() => void} save_changes
 * @property {(message: object) => void} send
 * @property {(event: string, handler: () => void) => void} on
 * @property {(event: string, handler: () => void) => void} off
 *
 * A part of the panel: its node, the traits it shows, and how it takes them over.
 * @typedef {{node: Element, traits: string[], update: () => void}} Part
 */

const SVG = "http://www.w3.org/2000/svg";
const NO_RANK = -1;
const FEW_RANKS = 8;

let lastId = 0;

/** @returns {string} an id that no other node of the page has */
function freshId() {
  lastId += 1;
  return `nbmgpu-${Date.now().toString(36)}-${lastId}`;
}

/**
 * Make an HTML element of class `nbmgpu-<name>`.
 * @param {string} tag
 * @param {string} name
 * @param {Record<string, string>} [attributes]
 * @param {(Element | string)[]} children
 * @returns {HTMLElement}
 */
function make(tag, name, attributes = {}, ...children) {
  const node = document.createElement(tag);
  node.className = `nbmgpu-${name}`;
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/**
 * Change a node's text only where it differs, so that selections and live regions rest.
 * @param {Element} node
 * @param {string} text
 */
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * Keep one child per item: children are made and dropped at the end, and updated in place.
 * @template Item
 * @template {{node: Element, update: (item: Item) => void}} Child
 * @param {Element} parent
 * @param {Child[]} children
 * @param {Item[]} items
 * @param {(index: number) => Child} create
 */
function match(parent, children, items, create) {
  while (children.length > items.length) children.pop()?.node.remove();
  while (children.length < items.length) {
    const child = create(children.length);
    children.push(child);
    parent.append(child.node);
  }
  children.forEach((child, index) => child.update(items[index]));
}

/**
 * State, what runs where, elapsed time, Stop.
 * @param {Model} model
 * @returns {Part}
 */
function header(model) {
  const dot = make("span", "dot", { "aria-hidden": "true" });
  const word = make("span", "state", { role: "status", "aria-live": "polite" });
  const title = make("span", "title");
  const batch = make("span", "batch");
  const elapsed = make("span", "elapsed", { "aria-label": "elapsed time" });
  const stop = make("button", "stop", { type: "button" });
  stop.addEventListener("click", (event) => {
    // The second click of a double click must not become a forced stop.
    if (event.detail < 2) model.send({ kind: "stop" });
  });

  const update = () => {
    /** @type {Status} */
    const status = model.get("status");
    /** @type {About} */
    const about = model.get("about");
    const forced = model.get("stop_clicks");
    dot.dataset.tone = status.tone;
    word.dataset.tone = status.tone;
    write(word, status.word);
    write(title, about.headline);
    write(batch, about.batch);
    write(elapsed, status.elapsed);
    write(stop, forced ? "Force stop" : "Stop");
    stop.title = forced
      ? "End the ranks at once: nothing comes back"
      : "Interrupt the ranks: weights and values so far come back";
    stop.toggleAttribute("disabled", status.over || forced > 1);
    stop.dataset.forced = String(forced > 0);
  };
  const node = make("div", "header", {}, dot, word, title, batch, elapsed, stop);
  return { node, traits: ["status", "about", "stop_clicks"], update };
}

/**
 * What people must know, above all where numbers differ from one device.
 * @param {Model} model
 * @returns {Part}
 */
function notices(model) {
  const node = make("ul", "notices", { "aria-label": "Notices" });
  const update = () => {
    /** @type {string[]} */
    const texts = model.get("notices");
    while (node.children.length > texts.length) node.lastElementChild?.remove();
    while (node.children.length < texts.length) node.append(make("li", "notice"));
    texts.forEach((text, index) => write(node.children[index], text));
    node.toggleAttribute("hidden", !texts.length);
  };
  return { node, traits: ["notices"], update };
}

/**
 * Which rank failed, by what, in which line.
 * @param {Model} model
 * @returns {Part}
 */
function failure(model) {
  const who = make("div", "who");
  const what = make("div", "what");
  const line = make("code", "line");
  const node = make("div", "failure", { role: "alert" }, who, what, line);
  const update = () => {
    /** @type {Cause | null} */
    const cause = model.get("failure");
    node.toggleAttribute("hidden", !cause);
    write(who, cause?.who ? `${cause.who} failed` : "The run failed");
    write(what, cause?.what ?? "");
    write(line, cause?.number ? `line ${cause.number}:  ${cause.line}` : "");
    line.toggleAttribute("hidden", !cause?.number);
  };
  return { node, traits: ["failure"], update };
}

/**
 * The bar of the training loader, and those of tqdm.
 * @param {Model} model
 * @returns {Part}
 */
function progress(model) {
  const node = make("div", "bars");
  /** @type {ReturnType<typeof progressBar>[]} */
  const children = [];
  const update = () => match(node, children, model.get("progress"), progressBar);
  return { node, traits: ["progress"], update };
}

function progressBar() {
  const label = make("span", "bar-label");
  const count = make("span", "bar-count");
  const fill = make("div", "bar-fill");
  const track = make("div", "bar-track", { role: "progressbar", "aria-valuemin": "0" }, fill);
  const node = make("div", "bar", {}, label, count, track);
  /** @param {Bar} bar */
  const update = (bar) => {
    write(label, bar.label);
    write(count, bar.count);
    track.setAttribute("aria-label", bar.label || "progress");
    track.setAttribute("aria-valuetext", bar.count);
    track.setAttribute("aria-valuemax", "100");
    track.toggleAttribute("data-unknown", bar.fraction < 0);
    if (bar.fraction < 0) track.removeAttribute("aria-valuenow");
    else track.setAttribute("aria-valuenow", String(Math.round(100 * bar.fraction)));
    fill.style.width = bar.fraction < 0 ? "" : `${100 * bar.fraction}%`;
  };
  return { node, update };
}

/**
 * One small card per metric.
 * @param {Model} model
 * @returns {Part}
 */
function curves(model) {
  const node = make("div", "curves");
  const empty = make("div", "empty", {}, "Curves appear with the first training step.");
  const more = make("div", "more");
  const section = make("div", "curve-section", {}, node, empty, more);
  /** @type {ReturnType<typeof curveCard>[]} */
  const children = [];
  const update = () => {
    match(node, children, model.get("curves"), curveCard);
    const hidden = model.get("hidden_curves");
    empty.toggleAttribute("hidden", children.length > 0);
    more.toggleAttribute("hidden", !hidden);
    write(more, `${hidden} more in nbmgpu.last_run.metrics`);
  };
  return { node: section, traits: ["curves", "hidden_curves"], update };
}

function curveCard() {
  const name = make("span", "curve-name");
  const value = make("span", "curve-value");
  const top = make("span", "curve-top");
  const bottom = make("span", "curve-bottom");
  const scale = make("div", "curve-scale", { "aria-hidden": "true" }, top, bottom);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 100 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const cursor = make("div", "curve-cursor", { hidden: "" });
  const plot = make("div", "curve-plot", {}, svg, cursor);
  const head = make("div", "curve-head", {}, name, value);
  const node = make("div", "curve", {}, head, make("div", "curve-body", {}, plot, scale));
  /** @type {Curve} */
  let curve;
  let points = new Float32Array();

  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const found = nearest(points, (event.clientX - box.left) / box.width);
    if (found < 0) return;
    cursor.hidden = false;
    cursor.style.left = `${100 * across(points, found)}%`;
    write(value, `${readable(points[2 * found + 1])} at ${points[2 * found]}`);
  });
  plot.addEventListener("pointerleave", () => {
    cursor.hidden = true;
    write(value, curve.last);
  });

  /** @param {Curve} next */
  const update = (next) => {
    curve = next;
    points = floats(curve.points);
    const [low, high] = range(points);
    write(name, curve.name);
    name.title = curve.name;
    if (cursor.hidden) write(value, curve.last);
    value.toggleAttribute("data-unsound", !curve.sound);
    write(top, low < high ? readable(high) : "");
    write(bottom, low < high ? readable(low) : "");
    svg.setAttribute("aria-label", `${curve.name}: ${curve.last} after ${curve.steps} steps`);
    svg.replaceChildren(...polylines(points, low, high));
  };
  return { node, update };
}

/**
 * The points of a curve, x and y in turn.  Bytes arrive at any offset: they are copied.
 * @param {DataView} view
 * @returns {Float32Array<ArrayBuffer>}
 */
function floats(view) {
  const end = view.byteOffset + view.byteLength;
  return new Float32Array(/** @type {ArrayBuffer} */ (view.buffer.slice(view.byteOffset, end)));
}

/**
 * The lowest and highest finite value.
 * @param {Float32Array} points
 * @returns {[number, number]}
 */
function range(points) {
  let [low, high] = [Infinity, -Infinity];
  for (let i = 1; i < points.length; i += 2) {
    if (!Number.isFinite(points[i])) continue;
    low = Math.min(low, points[i]);
    high = Math.max(high, points[i]);
  }
  return [low, high];
}

/**
 * How far a point lies to the right, from 0 to 1.
 * @param {Float32Array} points
 * @param {number} index
 */
function across(points, index) {
  const [first, last] = [points[0], points[points.length - 2]];
  return last > first ? (points[2 * index] - first) / (last - first) : 0.5;
}

/**
 * The index of the point nearest to `position` (0 to 1), or -1 when there is none.
 * @param {Float32Array} points
 * @param {number} position
 */
function nearest(points, position) {
  let best = -1;
  let distance = Infinity;
  for (let i = 0; i < points.length / 2; i += 1) {
    const d = Math.abs(across(points, i) - position);
    if (d < distance) [best, distance] = [i, d];
  }
  return best;
}

/**
 * A value for people, as `number` in content.py writes it.
 * @param {number} value
 */
function readable(value) {
  const size = Math.abs(value);
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  if (size === 0 || (size >= 1e-3 && size < 1e3)) return String(Number(value.toPrecision(4)));
  if (size >= 1e3 && size < 1e7) return Math.round(value).toLocaleString("en-US");
  return value.toExponential(2).replace(/\.?0*e\+?/, "e");
}

/**
 * One line per run of finite values: where a value is nan or inf, the curve has a gap.
 * @param {Float32Array} points
 * @param {number} low
 * @param {number} high
 */
function polylines(points, low, high) {
  /** @type {string[][]} */
  const lines = [[]];
  for (let i = 0; i < points.length / 2; i += 1) {
    const y = points[2 * i + 1];
    const height = high > low ? (high - y) / (high - low) : 0.5;
    const place = `${(100 * across(points, i)).toFixed(2)},${(4 + 92 * height).toFixed(2)}`;
    if (Number.isFinite(y)) lines[lines.length - 1].push(place);
    else lines.push([]);
  }
  return lines.filter((line) => line.length).map((line) => {
    const node = document.createElementNS(SVG, "polyline");
    // A single point becomes a dot: a line of no length with round ends.
    node.setAttribute("points", (line.length > 1 ? line : [line[0], line[0]]).join(" "));
    node.toggleAttribute("data-dot", line.length === 1);
    return node;
  });
}

/**
 * A button per rank, which opens and closes its log, and the log.
 * @param {Model} model
 * @returns {Part}
 */
function ranks(model) {
  const id = freshId();
  const chips = make("div", "chips", { role: "group", "aria-label": "Ranks: open a log" });
  const log = make("div", "log", { id, tabindex: "0", role: "region" }, make("pre", "log-text"));
  const node = make("div", "ranks", {}, chips, log);
  /** @type {ReturnType<typeof rankChip>[]} */
  const children = [];
  chips.addEventListener("keydown", (event) => moveFocus(chips, event));

  /** @param {number} rank */
  const choose = (rank) => {
    model.set("selected", model.get("selected") === rank ? NO_RANK : rank);
    model.save_changes();
  };
  const update = () => {
    /** @type {Mark[]} */
    const marks = model.get("ranks");
    const open = model.get("selected");
    match(chips, children, marks, (rank) => rankChip(rank, id, () => choose(rank)));
    children.forEach((chip, rank) => chip.open(rank === open, marks.length <= FEW_RANKS));
    showLog(log, open, model.get("logs")[open]);
  };
  log.addEventListener("scroll", update);
  return { node, traits: ["ranks", "selected", "logs"], update };
}

/**
 * @param {number} rank
 * @param {string} controls
 * @param {() => void} choose
 */
function rankChip(rank, controls, choose) {
  const dot = make("span", "dot", { "aria-hidden": "true" });
  const label = make("span", "chip-label", {}, `rank ${rank}`);
  const word = make("span", "chip-word");
  const node = make("button", "chip", { type: "button", "aria-controls": controls }, dot, label, word);
  node.addEventListener("click", choose);
  /** @param {Mark} mark */
  const update = (mark) => {
    const about = [`${mark.device}: ${mark.word}`, mark.detail].filter(Boolean).join("\n");
    node.dataset.tone = mark.tone;
    dot.dataset.tone = mark.tone;
    write(word, mark.word);
    node.title = `${about}\nOpen or close its log`;
    node.setAttribute("aria-label", `Log of rank ${rank}, ${mark.word}`);
  };
  /** Among many ranks, those without fault are shown by number and colour alone. */
  const open = (/** @type {boolean} */ chosen, /** @type {boolean} */ roomy) => {
    node.setAttribute("aria-expanded", String(chosen));
    write(label, roomy ? `rank ${rank}` : String(rank));
    word.toggleAttribute("hidden", !roomy && node.dataset.tone !== "bad");
  };
  return { node, update, open };
}

/**
 * Arrow keys walk along the chips.
 * @param {Element} chips
 * @param {KeyboardEvent} event
 */
function moveFocus(chips, event) {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!by) return;
  const all = [...chips.children];
  const at = all.indexOf(/** @type {Element} */ (document.activeElement));
  /** @type {HTMLElement} */ (all[(at + by + all.length) % all.length]).focus();
  event.preventDefault();
}

/**
 * Show a rank's log.  While somebody has scrolled up to read, it rests.
 * @param {HTMLElement} node its content is laid out from the end, which is scrollTop 0
 * @param {number} rank
 * @param {string | undefined} text undefined until the kernel has sent it
 */
function showLog(node, rank, text) {
  node.hidden = rank === NO_RANK;
  if (node.dataset.rank !== String(rank)) node.scrollTop = 0;
  else if (Math.abs(node.scrollTop) > 8) return;
  node.dataset.rank = String(rank);
  node.setAttribute("aria-label", `Log of rank ${rank}`);
  const shown = text === undefined ? "…" : text || `rank ${rank} has written nothing yet`;
  write(/** @type {Element} */ (node.firstElementChild), shown);
}

/**
 * @param {{model: Model, el: HTMLElement}} context
 * @returns {() => void} what to do when the view goes
 */
function render({ model, el }) {
  const parts = [header, notices, failure, progress, curves, ranks].map((part) => part(model));
  el.classList.add("nbmgpu");
  // Keys pressed in the panel are not the notebook's commands.
  el.setAttribute("data-lm-suppress-shortcuts", "true");
  el.setAttribute("role", "region");
  el.setAttribute("aria-label", "Run on several ranks");
  el.append(...parts.map((part) => part.node));
  const watched = parts.flatMap(({ traits, update }) =>
    traits.map((trait) => /** @type {[string, () => void]} */ ([`change:${trait}`, update])),
  );
  for (const [event, update] of watched) model.on(event, update);
  for (const part of parts) part.update();
  return () => {
    for (const [event, update] of watched) model.off(event, update);
  };
}

export default { render };
