// Predicts the result of a scheme: sliders, and replays of the trace on the simulated machine, in workers.
//
// A replay of a large trace takes seconds. So there are two machines: one replays all, and one replays a sample of the
// blocks and answers while a slider moves. The page says which of them answered. Answers are cached.

import {byteTicks, bytes, duration, element, percent, table} from "isotherm/format.js";
import {wide} from "isotherm/lists.js";
import {draw} from "isotherm/plot.js";

/** @typedef {{value: number, low: number|null, high: number|null}} Estimate */
/** @typedef {{seconds: number, resident_mean_bytes: number, saved_mean_bytes: number, saved_share: Estimate, steady_share: number|null, needed_ns: number|null, slowdown: Estimate,
 *   acting_cpu_seconds: Estimate, refaults: number, guard_stops: number, was_killed: boolean, resident_bytes: number[]}} Prediction */
/** @typedef {{program: string, seconds: number, interval_seconds: number, notes: string[], one_in: number, base: Prediction}} Facts */
/** @typedef {{prediction: Prediction, configuration: {yaml: string, command: string}}} Answer */
/** Values of the sliders; guard 0: none, quota 0: none. @typedef {{age: number, size: string, quota: number, guard: number}} Setting */

/** Ages that the page asks for, in seconds. */
export const AGES = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 90, 120, 180, 240];
const SIZES = ["4K", "64K", "2M"], QUOTAS = [0, 16, 64, 256, 1024], GUARDS = [0, .005, .01, .02, .05];

/** @param {Setting} s */
export const schemeLine = s => `${s.size} max 0% 0% ${s.age}s max pageout${s.quota ? ` ${s.quota}M 1s` : ""}`;

/** @param {Setting} s */
const nameOf = s => `${schemeLine(s)} ${s.guard}`;

/** A trace on a simulated machine in its own worker. It answers one question at a time, in order. */
class Machine {
  /** @param {{wasm: ArrayBuffer, record: ArrayBuffer, worker: string}} parts @param {number} oneIn
   * @param {{opened: () => void, answered: () => void, progressed: () => void, failed: (text: string) => void}} options */
  constructor(parts, oneIn, options) {
    this.oneIn = oneIn;
    this.options = options;
    /** @type {Facts|null} */
    this.facts = null;
    /** @type {Map<string, Answer>} */
    this.answers = new Map();
    /** @type {string|null} */
    this.asked = "open";
    this.slowest_ms = 0;
    /** Progress of the current replay. */
    this.share = 0;
    this.worker = new Worker(URL.createObjectURL(new Blob([parts.worker], {type: "text/javascript"})));
    this.worker.addEventListener("message", e => this.told(e.data));
    this.worker.addEventListener("error", e => options.failed(e.message || "the worker has failed"));
    this.worker.postMessage({id: "open", open: {wasm: parts.wasm, record: parts.record, oneIn}});
  }

  /** @param {{id: string, share?: number, facts?: Facts, answer?: Answer, error?: string, took_ms: number}} what */
  told(what) {
    if (what.share !== undefined) {
      this.share = what.share;
      this.options.progressed();
      return;
    }
    this.asked = null;
    if (what.error) {
      this.options.failed(what.error);
      return;
    }
    if (what.facts) {
      this.facts = what.facts;
      this.options.opened();
    } else if (what.answer) {
      this.answers.set(what.id, what.answer);
      this.slowest_ms = Math.max(this.slowest_ms, what.took_ms);
      this.options.answered();
    }
  }

  /** Requests the first setting without an answer, unless a replay runs. @param {Setting[]} settings */
  ask(settings) {
    if (this.asked || !this.facts) return;
    const wanted = settings.find(s => !this.answers.has(nameOf(s)));
    if (!wanted) return;
    this.asked = nameOf(wanted);
    this.share = 0;
    this.worker.postMessage({id: this.asked, question: {schemes: [schemeLine(wanted)], max_slowdown: wanted.guard || null}});
  }
}

/** Size of a packed trace whose replay takes about 50 ms. */
const QUICK_BYTES = 160 << 10;

export class WhatIf {
  /** @param {HTMLElement} place @param {{wasm: ArrayBuffer, record: ArrayBuffer, worker: string}} parts */
  constructor(place, parts) {
    this.place = place;
    /** @type {Setting} */
    this.setting = {age: 5, size: "4K", quota: 0, guard: 0};
    this.state = element("p", "", "note");
    this.state.setAttribute("role", "status");
    place.replaceChildren(this.state);
    const options = {opened: () => this.opened(), answered: () => { this.show(); this.next(); }, progressed: () => this.progress(), failed: (/** @type {string} */ text) => this.fail(text)};
    this.exact = new Machine(parts, 1, options);
    const oneIn = 2 ** Math.min(7, Math.ceil(Math.log2(Math.max(1, parts.record.byteLength / QUICK_BYTES))));
    this.coarse = oneIn > 1 ? new Machine(parts, oneIn, options) : null;
    this.progress();
  }

  /** Shows which machine answered, and the progress of replays. */
  progress() {
    const {coarse, exact, facts} = this, known = this.known(this.setting);
    const done = (/** @type {Machine} */ machine) => `${Math.round(machine.share * 100)} %`;
    if (!facts) this.state.textContent = `Reading the trace and replaying it once: ${done(coarse ?? exact)}`;
    else if (!known) this.state.textContent = `Replaying: ${done(coarse ?? exact)}`;
    else if (known.oneIn === 1) this.state.textContent = "Exact: a replay with these settings";
    else this.state.textContent = `Approximate: a replay of one block in ${known.oneIn}; the exact replay continues: ${done(exact)}`;
  }

  /** @param {string} text */
  fail(text) {
    const told = element("p", `The scheme cannot be predicted: ${text}`);
    told.setAttribute("role", "alert");
    this.place.prepend(told);
  }

  get facts() { return this.exact.facts ?? this.coarse?.facts ?? null; }

  opened() {
    if (!this.form) this.build();
    this.show();
    this.next();
  }

  /** The ages that this trace is long enough for. */
  ages() { return AGES.filter(age => age <= (this.facts?.seconds ?? 0) && age >= (this.facts?.interval_seconds ?? 0) * .99); }

  /** Requests missing answers: first for the current setting, then for the ages around it. */
  next() {
    const {setting} = this, far = (/** @type {number} */ age) => Math.abs(Math.log(age / setting.age));
    const settings = this.ages().sort((a, b) => far(a) - far(b)).map(age => ({...setting, age}));
    this.coarse?.ask(settings);
    this.exact.ask(settings);
  }

  /** @param {Setting} setting @returns {{answer: Answer, oneIn: number}|null} */
  known(setting) {
    for (const machine of [this.exact, this.coarse]) {
      const answer = machine?.answers.get(nameOf(setting));
      if (machine && answer) return {answer, oneIn: machine.oneIn};
    }
    return null;
  }

  build() {
    const facts = /** @type {Facts} */ (this.facts), ages = this.ages();
    const head = element("p", `${facts.program}, ${duration(facts.seconds)} of its life, replayed on the simulated machine: what would come of paging out memory that is idle.`, "note");
    const notes = facts.notes.map(text => element("p", text, "note"));
    const form = element("div", "", "sliders");
    const age = element("input");
    age.type = "range";
    age.min = "0";
    age.max = String(ages.length - 1);
    age.value = String(Math.max(0, ages.indexOf(5)));
    this.setting.age = ages[Number(age.value)] ?? ages[0] ?? 5;
    age.id = "what-age";
    age.addEventListener("input", () => this.set({age: ages[Number(age.value)]}));
    this.age = element("output");
    form.append(labelled("idle for", age, this.age));
    form.append(labelled("of at least", choice("what-size", SIZES.map(s => [s, s.replace("K", " KiB").replace("M", " MiB")]), v => this.set({size: v}))));
    form.append(labelled("at most", choice("what-quota", QUOTAS.map(q => [String(q), q ? `${q} MiB a second` : "all of it"]), v => this.set({quota: Number(v)}))));
    form.append(labelled("guard", choice("what-guard", GUARDS.map(g => [String(g), g ? `${g * 100} % slower` : "none"]), v => this.set({guard: Number(v)}))));
    this.figures = element("div", "", "figures");
    this.chart = element("div", "", "plot");
    this.curve = element("div", "", "plot");
    this.how = element("div");
    this.table = element("div");
    this.form = form;
    this.place.replaceChildren(head, ...notes, form, this.state, this.figures, element("h2", "Resident memory over time"), this.chart,
      element("h2", "Memory saved, and time lost, by age"), this.curve, this.table, element("h2", "How to do it"), this.how);
  }

  /** @param {Partial<Setting>} change */
  set(change) {
    this.setting = {...this.setting, ...change};
    const began = performance.now();
    this.show();
    this.drawn_ms = performance.now() - began;
    this.next();
  }

  show() {
    const {facts, setting, figures, how} = this;
    if (!facts || !figures || !how || !this.age) return;
    this.age.textContent = duration(setting.age);
    const known = this.known(setting);
    this.progress();
    this.place.dataset.state = !known ? "none" : known.oneIn > 1 ? "about" : "exact";
    if (!known) return;
    const p = known.answer.prediction;
    /** @type {[string, string][]} */
    const shown = [
      ["saved", `${bytes(Math.max(0, p.saved_mean_bytes))}, ${percent(Math.max(0, p.saved_share.value))}`], ["slower", signed(p.slowdown.value)],
      ["refaults", p.refaults.toFixed(0)], ["acting", duration(p.acting_cpu_seconds.value)],
    ];
    if (p.needed_ns) shown.push(["record length that the steady state needs", duration(p.needed_ns / 1e9)]);
    else if (p.steady_share !== null) shown.push(["saved in steady state", percent(Math.max(0, p.steady_share))]);
    if (p.guard_stops) shown.push(["guard's stops", p.guard_stops.toFixed(0)]);
    if (p.was_killed) shown.push(["killed", "for want of memory"]);
    figures.replaceChildren(...shown.map(([name, value]) => {
      const figure = element("div");
      figure.append(element("strong", value), element("span", name));
      return figure;
    }));
    this.drawTime(facts, p);
    this.drawCurve(setting);
    const {command, yaml} = known.answer.configuration;
    const file = element("details");
    file.append(element("summary", "As a configuration, for isotherm run -c and damo"), copyable(yaml, "Copy the configuration"));
    how.replaceChildren(copyable(command, "Copy the command"), file);
  }

  /** @param {Facts} facts @param {Prediction} p */
  drawTime(facts, p) {
    const {chart} = this;
    if (!chart) return;
    const nr = Math.max(p.resident_bytes.length, facts.base.resident_bytes.length);
    const times = Array.from({length: nr}, (_, i) => (i + .5) / nr * facts.seconds);
    const spread = (/** @type {number[]} */ of) => times.map((_, i) => of[Math.floor(i * of.length / nr)] ?? null);
    draw(chart, [times, spread(facts.base.resident_bytes), spread(p.resident_bytes)], {
      x: duration, lines: [{label: "by itself", stroke: "--dim", scale: "y"}, {label: "with it", stroke: "--accent", scale: "y", fill: "#56b4e933"}], y: bytes, ticks: most => byteTicks(most, 4),
    });
  }

  /** @param {Setting} setting */
  drawCurve(setting) {
    const {curve} = this, all = this.ages().map(age => ({age, known: this.known({...setting, age})}));
    const ages = all.filter(({known}) => known).map(({age}) => age);
    if (!curve || !ages.length) return;
    const of = all.flatMap(({known}) => known ? [known.answer.prediction] : []);
    const about = all.flatMap(({known}) => known ? [known.oneIn > 1 ? `one block in ${known.oneIn}` : "all"] : []);
    draw(curve, [ages, of.map(p => p.saved_share.value), of.map(p => p.slowdown.value)], {
      x: duration, xLabel: "idle for", log: true, points: true, at: setting.age, y: percent, z: signed,
      lines: [{label: "saved", stroke: "--accent", scale: "y"}, {label: "slower", stroke: "#d55e00", scale: "z"}],
    });
    const rows = ages.map((age, i) => [duration(age), bytes(Math.max(0, of[i].saved_mean_bytes)), percent(Math.max(0, of[i].saved_share.value)), signed(of[i].slowdown.value), of[i].refaults.toFixed(0), duration(of[i].acting_cpu_seconds.value), about[i]]);
    this.table?.replaceChildren(wide(table(["idle for", "saved", "of it", "slower", "refaults", "acting", "replayed"], rows, "Results by age")));
  }
}

/** @param {number} share */
const signed = share => (share < 0 ? "−" : "") + percent(Math.abs(share));

/** @param {string} name @param {HTMLElement} control @param {HTMLElement} [after] */
function labelled(name, control, after) {
  const made = element("label", "", "pick");
  made.append(element("span", name), control);
  if (after) made.append(after);
  return made;
}

/** @param {string} id @param {[string, string][]} options @param {(value: string) => void} chosen */
function choice(id, options, chosen) {
  const made = element("select");
  made.id = id;
  for (const [value, text] of options) made.add(new Option(text, value));
  made.addEventListener("change", () => chosen(made.value));
  return made;
}

/** @param {string} text @param {string} label */
function copyable(text, label) {
  const made = element("div"), pre = element("pre", text), button = element("button", label);
  pre.tabIndex = 0;
  button.addEventListener("click", () => void navigator.clipboard?.writeText(text).then(() => { button.textContent = "Copied"; }));
  made.append(pre, button);
  return made;
}
