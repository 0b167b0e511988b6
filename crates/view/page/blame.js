// First-touch profile: a call tree as a flame graph (callers above), and a list of functions beside it.
// Its width is all bytes of the answer; bytes without a known first touch are grey, at the right.

import {bytes, duration, element, percent, table} from "isotherm/format.js";
import {colour} from "isotherm/heat.js";
import {wide} from "isotherm/lists.js";

/** @typedef {import("./data.js").BlameJson} BlameJson */
/** @typedef {import("./data.js").AnswerJson} AnswerJson */
/** A box: its name, its place, and its caller.
 * @typedef {{name: string, library: string|null, isKnown: boolean, left: number, bytes: number, likely: number, row: number, above: Box|null, isFound: boolean}} Box */

const ROW = 19;
const FONT = "12px system-ui,sans-serif";
/** Colours of libraries, light enough for dark text. */
const HUES = [205, 28, 150, 75, 52, 265, 180, 5, 95, 230, 300, 120];
const USUAL_S = 60;

/** The view. It keeps the user's choices when the data is newer. */
export class Blame {
  /** @param {HTMLElement} place */
  constructor(place) {
    this.place = place;
    /** @type {Box[]} */
    this.boxes = [];
    /** @type {string|null} */
    this.chosen = null;
    /** @type {Box|null} */
    this.zoomed = null;
    /** @type {Box|null} */
    this.at = null;
    this.pick = element("select");
    this.field = element("input");
    this.field.type = "search";
    this.field.placeholder = "function or library";
    this.field.autocomplete = "off";
    this.told = element("span", "", "note");
    this.told.setAttribute("role", "status");
    this.facts = element("p", "", "note");
    this.canvas = element("canvas");
    this.tip = element("div", "", "tip");
    this.said = element("div", "", "sr");
    this.list = element("div");
    this.build();
  }

  build() {
    const {canvas, pick, field} = this, bar = element("div", "", "bar"), tools = element("span", "", "tools"), all = element("button", "All"), stage = element("div", "", "flame");
    for (const [text, input] of /** @type {const} */ ([["Memory ", pick], ["Find ", field]])) {
      const label = element("label", text, "pick");
      label.append(input);
      bar.append(label);
    }
    tools.append(all);
    bar.append(this.told, tools);
    all.title = "Show everything (0)";
    all.addEventListener("click", () => this.zoom(this.boxes[0]));
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-roledescription", "flame graph");
    canvas.setAttribute("aria-label", "Memory by the code that touched it first, callers above. Arrows go from box to box, Enter shows one, 0 shows all; the table beside it has the numbers");
    this.said.setAttribute("aria-live", "polite");
    stage.append(canvas, this.tip, this.said);
    const parts = element("div", "", "blame");
    parts.append(stage, this.list);
    this.place.replaceChildren(bar, this.facts, parts, element("p", "The first code to touch memory need not use it now: an allocator hands out freed memory again without a new page fault. Likely: memory between samples of two stacks, assigned to the nearer one.", "note"));
    pick.addEventListener("change", () => this.choose(pick.value));
    field.addEventListener("input", () => this.find());
    new ResizeObserver(() => this.draw()).observe(stage);
    canvas.addEventListener("keydown", e => this.key(e));
    canvas.addEventListener("click", e => {
      const box = this.under(e);
      if (box) this.zoom(box === this.zoomed ? box.above ?? box : box);
    });
    canvas.addEventListener("pointermove", e => this.point(e));
    canvas.addEventListener("pointerleave", () => { this.tip.style.display = "none"; });
    canvas.addEventListener("blur", () => this.draw());
  }

  /** @param {import("./data.js").Container} container @param {BlameJson} json */
  show(container, json) {
    this.container = container;
    this.json = json;
    const chosen = this.chosen ?? key(json.answers.find(a => a.measure === "idle" && a.at_least_s === USUAL_S) ?? json.answers[0]);
    this.pick.replaceChildren(...json.answers.map(a => new Option(titled(a), key(a))));
    this.choose(json.answers.some(a => key(a) === chosen) ? chosen : key(json.answers[0]));
  }

  /** Shows one of the answers, and keeps the zoom. @param {string} which */
  choose(which) {
    const {json, container} = this, answer = json?.answers.find(a => key(a) === which);
    if (!json || !container || !answer) return;
    const path = names(this.zoomed);
    this.chosen = which;
    this.pick.value = which;
    this.answer = answer;
    this.boxes = boxesOf(container, json, answer);
    this.hues = huesOf(this.boxes);
    this.zoomed = path.reduce((/** @type {Box} */ at, name) => this.boxes.find(b => b.above === at && b.name === name) ?? at, this.boxes[0]);
    this.at = null;
    const lost = json.nr_lost ? ` (${json.nr_lost} found no room)` : "";
    const read = answer.huge ? `Huge pages: ${bytes(answer.huge.bytes)}, of which ${bytes(answer.huge.read)} were read. ` : "";
    this.facts.textContent = answer.total
      ? `${read}${bytes(answer.total)} at ${duration(json.time_s)}: touched first by known code ${bytes(answer.blamed)}, of these ${bytes(answer.likely)} likely; unknown ${bytes(answer.before_sampling + answer.not_sampled)}; by ${json.nr_samples} samples${lost}.`
      : "No byte.";
    this.list.replaceChildren(this.functions(answer));
    this.find();
  }

  /** @param {AnswerJson} answer */
  functions(answer) {
    /** @param {number} part */
    const share = part => percent(part / Math.max(1, answer.total));
    const rows = answer.list.map(f => [f.name || NO_NAME, bytes(f.bytes), share(f.bytes), bytes(f.likely), bytes(f.inclusive)]);
    if (answer.nr_unlisted) rows.push([`${answer.nr_unlisted} others`, bytes(answer.unlisted), share(answer.unlisted), "", ""]);
    for (const [text, part] of unknowns(answer)) if (part) rows.push([text, bytes(part), share(part), "", ""]);
    const made = table(["function", "bytes", "share", "likely", "with called"], rows, "Functions that requested it");
    answer.list.forEach((f, i) => {
      const cell = made.tBodies[0].rows[i].cells[0], button = element("button", f.name || NO_NAME);
      button.title = "Find it";
      button.addEventListener("click", () => { this.field.value = f.name; this.find(); });
      cell.replaceChildren(button);
    });
    return wide(made);
  }

  /** Marks the boxes that match the search, and shows their sum. */
  find() {
    const sought = this.field.value.trim().toLowerCase(), within = new Set();
    let sum = 0, nr = 0;
    for (const box of this.boxes) {
      box.isFound = Boolean(sought) && box.isKnown && (box.name.toLowerCase().includes(sought) || Boolean(box.library?.toLowerCase().includes(sought)));
      if (box.isFound) nr++;
      // A match below another match counts once.
      if (box.isFound && !within.has(box.above)) sum += box.bytes;
      if (box.isFound || within.has(box.above)) within.add(box);
    }
    this.told.textContent = sought ? `${nr} found, with ${bytes(sum)} (${percent(sum / Math.max(1, this.boxes[0]?.bytes ?? 1))}) of what is drawn` : "";
    this.draw();
  }

  /** @param {Box} box */
  zoom(box) {
    this.zoomed = this.at = box;
    this.draw();
    this.said.textContent = `Shown: ${told(box, this.boxes[0]).join(", ")}`;
  }

  /** Returns the rectangle of a box, or null if it is not drawn. @param {Box} box */
  spot(box) {
    const {zoomed} = this, width = this.canvas.clientWidth;
    if (!zoomed || !width) return null;
    const isAbove = box.row < zoomed.row;
    // Above the zoomed box, only its callers.
    if (isAbove ? box.left > zoomed.left || box.left + box.bytes < zoomed.left + zoomed.bytes : box.left < zoomed.left || box.left + box.bytes > zoomed.left + zoomed.bytes) return null;
    const x = isAbove ? 0 : (box.left - zoomed.left) / zoomed.bytes * width, w = isAbove ? width : box.bytes / zoomed.bytes * width;
    return w < .3 ? null : {x, w, y: box.row * ROW, isAbove};
  }

  draw() {
    const {canvas, zoomed} = this, width = canvas.parentElement?.clientWidth ?? 0, pen = canvas.getContext("2d");
    if (!zoomed || !width || !pen) return;
    canvas.style.width = `${width}px`;
    const spots = this.boxes.flatMap(box => { const spot = this.spot(box); return spot ? [{box, ...spot}] : []; });
    const height = (Math.max(...spots.map(s => s.box.row)) + 1) * ROW, scale = window.devicePixelRatio;
    canvas.style.height = `${height}px`;
    canvas.width = width * scale;
    canvas.height = Math.min(32_000, height * scale);
    pen.scale(scale, scale);
    pen.font = FONT;
    pen.textBaseline = "middle";
    const isDark = document.documentElement.classList.contains("dark"), ink = "#14171c", grey = colour("--absent"), dim = colour("--dim");
    const letter = pen.measureText("abcdefghij").width / 10;
    for (const {box, x, w, y, isAbove} of spots) {
      const hue = box.library === null ? null : this.hues?.get(box.library);
      pen.globalAlpha = isAbove ? .75 : 1;
      pen.fillStyle = box.isFound ? "#e6007e" : !box.isKnown ? grey : hue === null || hue === undefined ? `hsl(40 14% ${isDark ? 62 : 76}%)` : `hsl(${hue} ${isDark ? "42% 66%" : "68% 78%"})`;
      pen.fillRect(x, y, Math.max(.3, w - .7), ROW - 1);
      const room = Math.floor((w - 8) / letter);
      pen.globalAlpha = 1;
      if (room < 3) continue;
      pen.fillStyle = box.isFound ? "#fff" : box.isKnown ? ink : dim;
      pen.fillText(fitted(pen, box.name, w - 8), x + 4, y + ROW / 2);
    }
    const here = this.at && document.activeElement === canvas ? this.spot(this.at) : null;
    if (here) {
      pen.strokeStyle = colour("--fg");
      pen.lineWidth = 2;
      pen.strokeRect(here.x + 1, here.y + 1, Math.max(2, here.w - 2), ROW - 3);
    }
  }

  /** @param {MouseEvent} e @returns {Box|undefined} */
  under(e) {
    const frame = this.canvas.getBoundingClientRect(), x = e.clientX - frame.left, row = Math.floor((e.clientY - frame.top) / ROW);
    return this.boxes.find(box => {
      const spot = box.row === row ? this.spot(box) : null;
      return spot && x >= spot.x && x < spot.x + spot.w;
    });
  }

  /** @param {PointerEvent} e */
  point(e) {
    const box = this.under(e), {tip} = this;
    tip.style.display = box ? "block" : "none";
    if (!box) return;
    tip.replaceChildren(...told(box, this.boxes[0]).map(line => element("div", line)));
    // Within the window, and under the pointer if there is room.
    const w = tip.offsetWidth, h = tip.offsetHeight, isLow = e.clientY + 18 + h > window.innerHeight;
    tip.style.left = `${Math.max(4, Math.min(e.clientX + 14, window.innerWidth - w - 16))}px`;
    tip.style.top = `${isLow ? Math.max(4, e.clientY - h - 12) : e.clientY + 18}px`;
  }

  /** Moves from box to box. @param {KeyboardEvent} e */
  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const at = this.at ?? this.zoomed, shown = this.boxes.filter(box => this.spot(box));
    if (!at) return;
    const row = shown.filter(box => box.row === at.row), place = row.indexOf(at);
    /** @type {Record<string, () => Box|null|undefined>} */
    const ways = {
      ArrowUp: () => at.above, ArrowDown: () => shown.filter(box => box.above === at).sort((a, b) => b.bytes - a.bytes)[0],
      ArrowLeft: () => row[place - 1], ArrowRight: () => row[place + 1],
    };
    if (ways[e.key]) {
      this.at = ways[e.key]() ?? at;
      this.draw();
      this.said.textContent = told(this.at, this.boxes[0]).join(", ");
    } else if (e.key === "Enter") this.zoom(at);
    else if (e.key === "0" || e.key === "Escape") this.zoom(this.boxes[0]);
    else return;
    e.preventDefault();
    e.stopPropagation();
  }
}

const NO_NAME = "[no name]";

/** @param {AnswerJson} answer */
const key = answer => `${answer.measure}/${answer.at_least_s}`;

/** @param {AnswerJson} answer */
function titled(answer) {
  if (answer.measure === "resident") return "all that is resident";
  if (answer.measure === "accessed") return "accessed in the last interval";
  if (answer.measure === "refaulted") return "brought back from swap";
  if (answer.measure === "waste") return "never written, of huge pages";
  return `idle for ${duration(answer.at_least_s)} and longer`;
}

/** Bytes that are in no tree, by reason. @param {AnswerJson} answer @returns {[string, number][]} */
const unknowns = answer => [["touched before sampling began", answer.before_sampling], ["far from any sample", answer.not_sampled]];

/** All boxes, callers before callees. @param {import("./data.js").Container} container @param {BlameJson} json @param {AnswerJson} answer @returns {Box[]} */
function boxesOf(container, json, answer) {
  const [functions, depths, lefts, sizes, likely] = [answer.boxes, answer.depths, answer.lefts, answer.bytes, answer.likely_bytes].map(ref => container.array(ref));
  /** @type {Box} */
  const root = {name: `all: ${bytes(answer.total)}`, library: null, isKnown: false, left: 0, bytes: 0, likely: answer.likely, row: 0, above: null, isFound: false};
  const all = [root];
  let last = 0, end = 0;
  for (let i = 0; i < functions.length; i++) {
    const [name, library] = json.functions[functions[i]], row = depths[i] + 1;
    // Rows follow each other, and each goes from left to right.
    if (all[all.length - 1].row !== row) last = all.findIndex(box => box.row === row - 1);
    while (all[last + 1]?.row === row - 1 && all[last + 1].left <= lefts[i]) last++;
    all.push({name: json.names[name] || NO_NAME, library: library === null ? null : json.names[library], isKnown: true, left: lefts[i], bytes: sizes[i], likely: likely[i], row, above: all[last], isFound: false});
    if (row === 1) end = lefts[i] + sizes[i];
  }
  for (const [name, part] of /** @type {[string, number][]} */ ([[`${answer.nr_others} smaller stacks`, answer.others], ...unknowns(answer)])) {
    if (part) all.push({name, library: null, isKnown: false, left: end, bytes: part, likely: 0, row: 1, above: root, isFound: false});
    end += part;
  }
  root.bytes = Math.max(1, end);
  return all;
}

/** Hues of libraries: by the name; if it is taken, the next free one. The largest library chooses first. @param {Box[]} boxes @returns {Map<string, number>} */
function huesOf(boxes) {
  /** @type {Map<string, number>} */
  const sums = new Map(), hues = new Map(), taken = new Set();
  for (const {library, bytes} of boxes) if (library !== null) sums.set(library, (sums.get(library) ?? 0) + bytes);
  for (const [library] of [...sums].sort((a, b) => b[1] - a[1])) {
    let own = 7;
    for (const byte of new TextEncoder().encode(library)) own = Math.imul(own, 31) + byte >>> 0;
    const free = HUES.map((_, by) => (own + by) % HUES.length).find(hue => !taken.has(hue)) ?? own % HUES.length;
    taken.add(free);
    hues.set(library, HUES[free]);
  }
  return hues;
}

/** Names from the outermost function to this one. @param {Box|null} box @returns {string[]} */
const names = box => box?.above ? [...names(box.above), box.name] : [];

/** @param {Box} box @param {Box} all @returns {string[]} */
function told(box, all) {
  const share = `${bytes(box.bytes)}, ${percent(box.bytes / all.bytes)} of all`;
  if (!box.isKnown) return [box.name, share];
  return [box.name, box.library ?? "code of no file", share, ...box.likely ? [`${bytes(box.likely)} of it likely`] : []];
}

/** The start of a text that fits. @param {CanvasRenderingContext2D} pen @param {string} text @param {number} room */
function fitted(pen, text, room) {
  // No name that fits is longer than this, however narrow its letters.
  let letters = [...text.slice(0, 400)];
  if (text.length <= 400 && pen.measureText(text).width <= room) return text;
  let from = 0, to = letters.length;
  while (from < to) {
    const middle = (from + to + 1) >> 1;
    if (pen.measureText(letters.slice(0, middle).join("") + "…").width <= room) from = middle; else to = middle - 1;
  }
  return from > 1 ? letters.slice(0, from).join("") + "…" : "";
}
