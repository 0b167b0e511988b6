// The page shows one record at a time; all its views show the same seconds.

import {Blame} from "isotherm/blame.js";
import {Container, Layer} from "isotherm/data.js";
import {bytes, duration, element, hex, percent, table} from "isotherm/format.js";
import {HeatMap, colour} from "isotherm/heat.js";
import {Compare} from "isotherm/compare.js";
import {schemes} from "isotherm/acting.js";
import {hugeCurve, reclaimCurve} from "isotherm/curves.js";
import {Details} from "isotherm/detail.js";
import {pictures, processes, wide} from "isotherm/lists.js";
import {machineOf} from "isotherm/machine.js";
import {byMapping} from "isotherm/select.js";
import {Chart, Linked} from "isotherm/series.js";
import {colours} from "isotherm/tiles.js";
import {tiersOf} from "isotherm/tiers.js";
import {WhatIf} from "isotherm/what-if.js";

/** @typedef {import("./data.js").RecordJson} RecordJson */
/** @typedef {import("./heat.js").Selection} Selection */

const TABS = ["memory", "processes", "schemes", "what", "machine", "tiers", "blame", "compare"];
/** Tabs of what-if. */
const WAYS = ["try", "reclaim", "huge"];
const NO_TRACE = "Predictions of schemes need page scans: record with `isotherm record --pages`, and open that record (with an isotherm that was built with its what-if).";
/** Rows of a table of mappings. */
const MOST_ROWS = 60;

/** @template {HTMLElement} T @param {string} id @returns {T} */
const at = id => /** @type {T} */ (document.getElementById(id));

export class App {
  /** @param {ArrayBuffer} buffer @param {((record: number) => Promise<{wasm: ArrayBuffer, record: ArrayBuffer, worker: string}>)|null} trace
   * returns the simulated machine and the trace that it replays; null if the page has none
   * @param {import("./detail.js").Ask|null} ask returns parts of heat maps; null without a server */
  constructor(buffer, trace = null, ask = null) {
    this.trace = trace;
    this.container = new Container(buffer);
    const {json} = this.container;
    /** @type {Map<string, Layer>} */
    this.layers = new Map();
    this.rate = colours(json.ramp);
    /** @type {Compare|null} */
    this.comparison = null;
    /** @type {Selection|null} */
    this.selection = null;
    /** @type {{x: number, y: number}|null} */
    this.mark = null;
    this.heat = new HeatMap(at("map"), {
      codes: json.codes, rate: this.rate,
      changed: () => this.followed(),
      pointed: (lines, x, y) => this.tip(lines, x, y),
      selected: what => this.selected(what),
    });
    this.chart = new Chart(at("chart"), "Memory over time", {
      zoomed: (t0, t1) => this.heat.setView({...this.heat.view, t0, t1}),
      margins: () => { const p = this.heat.plot(); return {left: Math.max(56, p.x), right: Math.max(8, this.heat.canvas.clientWidth - p.x - p.w)}; },
    });
    this.details = ask && new Details(this.heat, ask);
    this.blame = new Blame(at("blame"));
    this.linked = new Linked((t0, t1) => this.heat.setView({...this.heat.view, t0, t1}));
    const record = /** @type {HTMLSelectElement} */ (at("record"));
    json.records.forEach((r, i) => record.add(new Option(r.subject || `record ${i}`, String(i))));
    at("record-pick").hidden = json.records.length < 2;
    record.addEventListener("change", () => this.open(Number(record.value)));
    this.listen();
    const prefers = window.matchMedia("(prefers-color-scheme: dark)");
    prefers.addEventListener("change", e => this.theme(e.matches));
    this.theme(prefers.matches);
    this.open(0);
    const asked = location.hash.slice(1), first = this.container.json.records[0]?.layers.of.length ? "memory" : "machine";
    this.tab(this.shown().includes(asked) ? asked : this.shown().includes(first) ? first : "memory", false);
  }

  /** Shows a message about the state of the page. @param {string} text */
  status(text) { at("status").textContent = text; }

  /** Shows a newer version of the document. Keeps the process, and the seconds unless they were the latest. @param {ArrayBuffer} buffer */
  update(buffer) {
    const {heat} = this, before = {view: heat.view, end: heat.end, height: heat.height, label: heat.layer?.label, selection: heat.selection};
    this.container = new Container(buffer);
    this.comparison = null;
    this.layers.clear();
    this.open(Math.min(this.index ?? 0, this.container.json.records.length - 1), before.label);
    const {view} = before, isLatest = view.t1 >= before.end * 0.999, by = isLatest ? heat.end - before.end : 0;
    const isWhole = view.t0 <= 0 && isLatest, scale = heat.height / before.height;
    heat.setView({t0: isWhole ? 0 : view.t0 + by, t1: isLatest ? heat.end : view.t1, v0: view.v0 * scale, v1: view.v1 * scale});
    if (before.selection) heat.setSelection(before.selection);
  }

  /** Shows a record, at its largest target or the one with this label. @param {number} index @param {string} [label] */
  open(index, label) {
    /** @type {RecordJson} */
    this.record = this.container.json.records[index];
    const {record} = this;
    this.index = index;
    const left = record.layers.left_out ? ` · ${record.layers.left_out} smaller ones left out` : "";
    const needed = record.curves?.needed ? ` · ${record.curves.needed}` : "";
    at("subject").textContent = record.subject + needed + left;
    at("subject").title = at("subject").textContent ?? "";
    const target = /** @type {HTMLSelectElement} */ (at("target"));
    target.replaceChildren(...record.layers.of.map((layer, i) => new Option(layer.label, String(i))));
    /** Returns a function that shows a process's heat map, or null if it has none. @param {string} label */
    const opens = label => {
      const number = record.layers.of.findIndex(layer => layer.label === label);
      return number < 0 ? null : () => { this.target(number); this.tab("memory"); };
    };
    at("processes").replaceChildren(...processes(record, label => opens(label)?.()));
    this.linked.clear();
    at("schemes").replaceChildren(...schemes(this.container, record, this.linked));
    at("machine").replaceChildren(...record.machine ? machineOf(record.machine, opens) : [], ...pictures(record));
    at("tab-machine").hidden = !record.machine && !record.pictures.length;
    at("tiers").replaceChildren(...record.tiers ? tiersOf(this.container, record.tiers, this.linked) : []);
    at("tab-tiers").hidden = !record.tiers;
    at("tab-blame").hidden = !record.blame;
    if (record.blame) this.blame.show(this.container, record.blame);
    at("tab-compare").hidden = this.container.json.records.length < 2;
    this.whatIf = undefined;
    this.curves();
    this.target(Math.max(0, record.layers.of.findIndex(layer => layer.label === label)));
    this.heat.reset();
  }

  /** Draws the curves of policies, from page scans. */
  curves() {
    const curves = this.record?.curves;
    at("what-try").replaceChildren(...this.trace ? [] : [element("p", NO_TRACE, "note")]);
    at("ways").hidden = !curves;
    at("way-huge").hidden = !curves?.huge;
    for (const name of ["reclaim", "huge"]) at(`what-${name}`).replaceChildren();
    this.way(this.trace || !curves ? "try" : "reclaim", false);
  }

  /** Shows one of the tabs of what-if. @param {string} name @param {boolean} [focus] */
  way(name, focus = true) {
    const curves = this.record?.curves;
    for (const other of WAYS) {
      const tab = at(`way-${other}`), isOn = other === name;
      tab.setAttribute("aria-selected", String(isOn));
      tab.tabIndex = isOn ? 0 : -1;
      at(`what-${other}`).hidden = !isOn;
      if (isOn && focus) tab.focus();
    }
    const place = at(`what-${name}`);
    // A plot needs its width.
    if (at("what").hidden || place.firstChild || !curves) return;
    if (name === "reclaim") reclaimCurve(place, this.container, curves);
    if (name === "huge" && curves.huge) hugeCurve(place, curves.huge);
  }

  /** Shows a target. @param {number} index */
  target(index) {
    const json = this.record?.layers.of[index], record = /** @type {RecordJson} */ (this.record), {layers} = record;
    const name = `${this.index}/${index}`;
    this.number = index;
    let layer = this.layers.get(name) ?? null;
    if (json && !layer) this.layers.set(name, layer = new Layer(this.container, json, record.layers));
    const pick = /** @type {HTMLSelectElement} */ (at("target"));
    if (json) pick.value = String(index);
    this.heat.show(layer, Math.max(record.duration_s, layers.start_s + layers.columns * layers.column_s, 0.001));
    const course = record.courses.find(c => c.label === json?.label) ?? record.total;
    at("chart-title").textContent = course === record.total ? "Memory over time, all processes" : "Memory over time";
    this.chart.show(this.container, course.quantities);
    this.followed();
    this.selected(null);
  }

  /** Updates all views of the seconds shown. */
  followed() {
    const {t0, t1} = this.heat.view;
    this.chart?.setRange(t0, t1);
    this.linked?.setRange(t0, t1);
    this.details?.look(this.index ?? 0, this.number ?? 0);
    if (!at("numbers").hidden) this.numbers();
  }

  /** @param {string} name @param {boolean} [focus] */
  tab(name, focus = true) {
    for (const other of TABS) {
      const tab = at(`tab-${other}`), isOn = other === name;
      tab.setAttribute("aria-selected", String(isOn));
      tab.tabIndex = isOn ? 0 : -1;
      at(other).hidden = !isOn;
      if (isOn && focus) tab.focus();
    }
    history.replaceState(null, "", `#${name}`);
    if (name === "what") {
      this.ask();
      this.way(WAYS.find(way => !at(`what-${way}`).hidden) ?? "try", false);
    }
    if (name === "compare") this.comparison ??= new Compare(at("compare"), this.container);
    this.heat.refresh();
    this.chart.resize();
    this.linked.redraw();
    this.blame.draw();
  }

  /** Returns the tabs of this record. */
  shown() { return TABS.filter(name => !at(`tab-${name}`).hidden); }

  /** Starts the simulated machine at the first what-if. */
  ask() {
    if (this.whatIf || !this.trace) return;
    const place = at("what-try");
    this.trace(this.index ?? 0).then(parts => { this.whatIf = new WhatIf(place, parts); }, error => {
      place.replaceChildren(element("p", `The trace cannot be loaded: ${error}`, "note"));
    });
    place.replaceChildren(element("p", "Loading the trace …", "note"));
    this.whatIf = null;
  }

  /** @param {boolean} dark */
  theme(dark) {
    document.documentElement.classList.toggle("dark", dark);
    this.ramp();
    this.heat.refresh();
    this.chart.redraw();
    this.linked.redraw();
    this.blame.draw();
  }

  ramp() {
    const c = /** @type {HTMLCanvasElement} */ (at("ramp")), g = c.getContext("2d"), room = c.width - 70;
    if (!g) return;
    g.clearRect(0, 0, c.width, c.height);
    /** @param {number} share */
    const put = share => 50 + Math.sqrt(share) * room;
    const [r, gr, b] = this.rate(0);
    g.fillStyle = `rgb(${r},${gr},${b})`;
    g.fillRect(0, 0, 40, 26);
    for (let x = 0; x < room; x++) {
      const [r, gr, b] = this.rate(Math.max(1e-9, (x / room) ** 2));
      g.fillStyle = `rgb(${r},${gr},${b})`;
      g.fillRect(50 + x, 0, 1, 26);
    }
    g.fillStyle = colour("--dim");
    g.font = "20px system-ui,sans-serif";
    g.textAlign = "center";
    g.textBaseline = "top";
    g.fillText("0", 20, 34);
    for (const share of [.01, .05, .25, .5, 1]) g.fillText(`${share * 100}%`, Math.min(c.width - 26, put(share)), 34);
  }

  /** @param {string[]|null} lines @param {number} x @param {number} y */
  tip(lines, x, y) {
    const tip = at("tip"), stage = at("stage");
    tip.style.display = lines ? "block" : "none";
    if (!lines) return;
    tip.replaceChildren(...lines.map(line => element("div", line)));
    const w = tip.offsetWidth, h = tip.offsetHeight;
    tip.style.left = `${x + 16 + w > stage.clientWidth ? Math.max(4, x - w - 14) : x + 16}px`;
    tip.style.top = `${y + 16 + h > stage.clientHeight ? Math.max(4, y - h - 14) : y + 16}px`;
  }

  /** Shows the content of a selection, and the commands that report it. @param {Selection|null} what */
  selected(what) {
    this.selection = what;
    const place = at("selection"), {layer} = this.heat;
    place.hidden = !what || !layer;
    if (!what || !layer) return;
    const head = element("div", "", "bar");
    const from = layer.address(what.from), to = layer.end(what.to);
    head.append(element("strong", `Selected: ${duration(what.t0)} to ${duration(what.t1)}, ${hex(from)} – ${hex(to)} (${bytes((what.to - what.from) * layer.unit)})`));
    const zoom = element("button", "Zoom to it"), drop = element("button", "Select nothing");
    zoom.addEventListener("click", () => {
      this.heat.setView({t0: what.t0, t1: what.t1, v0: this.heat.heightOf(what.from), v1: this.heat.heightOf(what.to)});
    });
    drop.addEventListener("click", () => this.heat.setSelection(null));
    head.append(zoom, drop);
    const filter = JSON.stringify({type: "addr", matching: true, allow: true, address_range: [hex(from), hex(to)]});
    const text = element("pre", filter), copy = element("button", "Copy this filter of a scheme");
    text.tabIndex = 0;
    copy.addEventListener("click", () => void navigator.clipboard?.writeText(filter).then(() => { copy.textContent = "Copied"; }));
    head.append(copy);
    place.replaceChildren(head, text, wide(this.mappings(what, "Selected memory, means over that time")));
  }

  /** @param {Selection} part @param {string} caption */
  mappings(part, caption) {
    const layer = this.heat.finest(part.t0, part.t1)?.layer;
    if (!layer) return table([], [], caption);
    const rows = byMapping(layer, this.container.json.codes, part), shown = rows.slice(0, MOST_ROWS);
    const lines = shown.map(r => [r.name, bytes(r.bytes), bytes(r.accessed), bytes(r.idle), bytes(r.unknown), bytes(r.swapped), r.rate === null ? "?" : percent(r.rate), duration(r.age)]);
    const more = rows.length > MOST_ROWS ? `; ${rows.length - MOST_ROWS} smaller mappings are not shown` : "";
    return table(["mapping", "resident", "accessed", "idle", "unknown", "swapped out", "mean access rate", "mean age"], lines, caption + more);
  }

  /** The pictures' data as tables. */
  numbers() {
    const {heat} = this, v = heat.view;
    const part = {t0: v.t0, t1: v.t1, from: heat.placeAt(v.v0), to: heat.placeAt(v.v1 - 1e-6) + 1};
    at("numbers").replaceChildren(wide(this.mappings(part, `Heat map: ${duration(v.t0)} to ${duration(v.t1)}, means over that time`)), wide(this.chart.table()));
  }

  /** Shows an address, or the next mapping whose name contains the text. @param {string} text */
  find(text) {
    const {layer} = this.heat, told = at("found");
    told.textContent = "";
    if (!layer || !text) return;
    if (/^0x[0-9a-f]+$/i.test(text)) {
      const address = BigInt(text);
      for (let run = 0; run < layer.addresses.length; run++) {
        const next = run + 1 < layer.runs.length ? layer.runs[run + 1] : layer.length;
        const place = layer.runs[run] + Number((address - layer.addresses[run]) / BigInt(layer.unit));
        if (address < layer.addresses[run] || place >= next) continue;
        this.heat.showPlaces(place, Math.min(next, place + 16));
        told.textContent = layer.mapping(place)?.name ?? "not mapped";
        return;
      }
      told.textContent = "not in the picture";
      return;
    }
    const found = [];
    for (let i = 0; i < layer.mappings.length; i += 3) {
      if (layer.names[layer.mappings[i + 2]].toLowerCase().includes(text.toLowerCase())) found.push(i);
    }
    if (!found.length) {
      told.textContent = "no mapping has this name";
      return;
    }
    this.nth = this.sought === text ? ((this.nth ?? 0) + 1) % found.length : 0;
    this.sought = text;
    const i = found[this.nth], [place, units] = layer.mappings.subarray(i, i + 2);
    this.heat.showPlaces(place, place + units);
    told.textContent = `${this.nth + 1} of ${found.length}: ${layer.names[layer.mappings[i + 2]].slice(-60)}, ${bytes(units * layer.unit)}`;
  }

  /** @param {string} id @param {(isOn: boolean) => void} act */
  toggle(id, act) {
    const button = at(id), isOn = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(isOn));
    act(isOn);
  }

  showTables() {
    this.toggle("tables", isOn => {
      at("numbers").hidden = !isOn;
      if (isOn) this.numbers();
    });
  }

  listen() {
    const {heat} = this;
    at("theme").addEventListener("click", () => this.theme(!document.documentElement.classList.contains("dark")));
    at("help-open").addEventListener("click", () => this.help());
    at("zoom-in").addEventListener("click", () => heat.zoom(.7, "both", middle(heat)));
    at("zoom-out").addEventListener("click", () => heat.zoom(1.4, "both", middle(heat)));
    at("reset").addEventListener("click", () => heat.reset());
    at("selecting").addEventListener("click", () => this.toggle("selecting", () => {}));
    at("tables").addEventListener("click", () => this.showTables());
    const target = /** @type {HTMLSelectElement} */ (at("target"));
    target.addEventListener("change", () => this.target(Number(target.value)));
    const find = /** @type {HTMLInputElement} */ (at("find"));
    find.addEventListener("keydown", e => {
      if (e.key === "Enter") this.find(find.value.trim());
      if (e.key === "Escape") heat.canvas.focus();
      e.stopPropagation();
    });
    for (const name of TABS) at(`tab-${name}`).addEventListener("click", () => this.tab(name));
    for (const name of WAYS) at(`way-${name}`).addEventListener("click", () => this.way(name));
    document.addEventListener("keydown", e => this.key(e));
    window.addEventListener("beforeprint", () => this.theme(false));
    pointers(heat, () => at("selecting").getAttribute("aria-pressed") === "true");
  }

  help() { /** @type {HTMLDialogElement} */ (at("help")).showModal(); }

  /** @param {KeyboardEvent} e */
  key(e) {
    if (e.ctrlKey || e.metaKey || at("help").hasAttribute("open")) return;
    const {target} = e, isField = target instanceof HTMLInputElement || target instanceof HTMLSelectElement;
    if (isField) return;
    const isTab = target instanceof HTMLElement && target.getAttribute("role") === "tab";
    if (isTab && (e.key === "ArrowLeft" || e.key === "ArrowRight")) {
      const [prefix, name] = target.id.split("-"), by = e.key === "ArrowRight" ? 1 : -1;
      const shown = prefix === "way" ? WAYS.filter(way => !at(`way-${way}`).hidden) : this.shown();
      const next = shown[(shown.indexOf(name) + by + shown.length) % shown.length];
      if (prefix === "way") this.way(next); else this.tab(next);
      e.preventDefault();
      return;
    }
    const {heat} = this, axes = e.altKey ? "x" : "both", step = 1 / 8;
    const targets = this.record?.layers.of.length ?? 0, shown = Number(/** @type {HTMLSelectElement} */ (at("target")).value);
    /** @type {Record<string, () => void>} */
    const acts = {
      ArrowLeft: () => e.shiftKey ? this.cross(-1, 0) : heat.move(-step, 0), ArrowRight: () => e.shiftKey ? this.cross(1, 0) : heat.move(step, 0),
      ArrowUp: () => e.shiftKey ? this.cross(0, -1) : heat.move(0, step), ArrowDown: () => e.shiftKey ? this.cross(0, 1) : heat.move(0, -step),
      "+": () => heat.zoom(.7, axes, heat.pointer ?? middle(heat)), "=": () => heat.zoom(.7, axes, heat.pointer ?? middle(heat)),
      "-": () => heat.zoom(1.4, axes, heat.pointer ?? middle(heat)), "0": () => heat.reset(),
      "/": () => at("find").focus(), "?": () => this.help(), "t": () => at("theme").click(), "v": () => this.showTables(),
      "s": () => at("selecting").click(), "m": () => this.marked(), "Escape": () => { this.mark = null; heat.setSelection(null); },
      "[": () => targets && this.target((shown + targets - 1) % targets), "]": () => targets && this.target((shown + 1) % targets),
      "1": () => this.tab(TABS[0]), "2": () => this.tab(TABS[1]), "3": () => this.tab(TABS[2]), "4": () => this.tab(TABS[3]),
      ...Object.fromEntries(["5", "6", "7", "8"].map(key => [key, () => this.shown().length >= Number(key) && this.tab(this.shown()[Number(key) - 1])])),
    };
    const arrows = e.key.startsWith("Arrow");
    // Elsewhere arrows scroll the page.
    if (!acts[e.key] || arrows && target !== heat.canvas && target !== document.body) return;
    e.preventDefault();
    acts[e.key]();
  }

  /** Moves the cross, and describes that point. @param {number} x @param {number} y */
  cross(x, y) {
    const {heat} = this, p = heat.plot(), from = heat.pointer ?? middle(heat);
    const to = {x: clamp(from.x + x * 8, p.x, p.x + p.w - 1), y: clamp(from.y + y * 8, p.y, p.y + p.h - 1)};
    heat.point(to);
    at("told").textContent = (heat.describe(to) ?? []).join(", ");
  }

  /** Begins or ends a selection at the cross. */
  marked() {
    const {heat} = this, here = heat.pointer ?? middle(heat);
    if (this.mark) {
      heat.select(this.mark, here);
      this.mark = null;
    } else {
      this.mark = here;
      at("told").textContent = "The selection begins here; move the cross and press m again.";
    }
  }
}

/** @param {number} value @param {number} least @param {number} most */
const clamp = (value, least, most) => Math.min(most, Math.max(least, value));

/** @param {HeatMap} heat */
function middle(heat) {
  const p = heat.plot();
  return {x: p.x + p.w / 2, y: p.y + p.h / 2};
}

/** Handles mouse, pen and touch on the heat map. @param {HeatMap} heat @param {() => boolean} selects */
function pointers(heat, selects) {
  const {canvas} = heat;
  /** @type {Map<number, {x: number, y: number}>} */
  const down = new Map();
  /** @type {{at: {x: number, y: number}, view: import("./heat.js").View, selects: boolean}|null} */
  let drag = null;
  /** @param {MouseEvent} e */
  const place = e => { const r = canvas.getBoundingClientRect(); return {x: e.clientX - r.left, y: e.clientY - r.top}; };
  const spread = () => { const [a, b] = [...down.values()]; return Math.hypot(a.x - b.x, a.y - b.y); };
  canvas.addEventListener("wheel", e => {
    e.preventDefault();
    const delta = e.deltaY || e.deltaX;
    heat.zoom(Math.exp(clamp(delta / 300, -1, 1)), e.shiftKey ? "x" : e.ctrlKey || e.altKey ? "y" : "both", place(e));
  }, {passive: false});
  canvas.addEventListener("pointerdown", e => {
    canvas.focus();
    down.set(e.pointerId, place(e));
    canvas.setPointerCapture(e.pointerId);
    drag = down.size === 1 ? {at: place(e), view: {...heat.view}, selects: e.shiftKey || selects()} : null;
    canvas.classList.toggle("dragging", !drag?.selects);
  });
  canvas.addEventListener("pointermove", e => {
    const now = place(e);
    if (down.size === 2 && down.has(e.pointerId)) {
      const before = spread();
      down.set(e.pointerId, now);
      heat.zoom(before / Math.max(1, spread()), "both", now);
      return;
    }
    if (drag?.selects) heat.select(drag.at, now);
    else if (drag) {
      const p = heat.plot(), v = drag.view, dt = (drag.at.x - now.x) / p.w * (v.t1 - v.t0), dv = (now.y - drag.at.y) / p.h * (v.v1 - v.v0);
      heat.setView({t0: v.t0 + dt, t1: v.t1 + dt, v0: v.v0 + dv, v1: v.v1 + dv});
    }
    heat.point(drag && !drag.selects ? null : now);
  });
  /** @param {PointerEvent} e */
  const up = e => {
    down.delete(e.pointerId);
    drag = null;
    canvas.classList.remove("dragging");
    heat.refresh();
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("pointerleave", () => { if (!drag) heat.point(null); });
  canvas.addEventListener("dblclick", () => heat.reset());
}
