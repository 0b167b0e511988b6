// Two records beside each other: memory over time, and in total.

import {bytes, duration, element, table} from "isotherm/format.js";
import {wide} from "isotherm/lists.js";
import {Chart} from "isotherm/series.js";

/** @typedef {import("./data.js").Container} Container */
/** @typedef {import("./data.js").RecordJson} RecordJson */
/** @typedef {import("./data.js").QuantityJson} QuantityJson */

/** Quantities that are compared, and their labels. @type {[string, string][]} */
const WHAT = [["rss", "RSS"], ["touched", "in use"], ["idle_5s", "idle 5 to 30 s"], ["idle_30s", "idle 30 s to 2 min"], ["idle_2min", "idle 2 min and longer"], ["unknown", "unknown"], ["swapped", "swapped out"]];

/** The view of two records. It keeps the user's choice. */
export class Compare {
  /** @param {HTMLElement} place @param {Container} container */
  constructor(place, container) {
    this.place = place;
    this.container = container;
    const {records} = container.json, form = element("div", "", "sliders");
    /** @type {[number, number]} */
    this.chosen = [0, 1];
    for (const [at, name] of ["before", "after"].entries()) {
      const label = element("label", "", "pick"), select = element("select");
      records.forEach((record, i) => select.add(new Option(record.subject || `record ${i}`, String(i))));
      select.value = String(this.chosen[at]);
      select.addEventListener("change", () => { this.chosen[at] = Number(select.value); this.show(); });
      label.append(element("span", name), select);
      form.append(label);
    }
    this.what = element("select");
    for (const [name, label] of WHAT) this.what.add(new Option(label, name));
    this.what.addEventListener("change", () => this.show());
    const label = element("label", "", "pick");
    label.append(element("span", "over time"), this.what);
    form.append(label);
    const chart = element("div", "", "plot");
    this.tables = element("div");
    place.replaceChildren(form, chart, this.tables);
    this.chart = new Chart(chart, "Two records over time", {zoomed: () => {}});
    this.show();
  }

  show() {
    const [a, b] = this.chosen.map(i => this.container.json.records[i]), name = this.what.value;
    /** @param {RecordJson} record @param {string} as @returns {QuantityJson[]} */
    const course = (record, as) => record.total.quantities.filter(q => q.name === name).map(q => ({...q, name: as}));
    this.chart.range = [0, Math.max(a.duration_s, b.duration_s)];
    this.chart.show(this.container, [...course(a, "a"), ...course(b, "b")], [],
      [{name: "a", label: "before", stroke: "--dim"}, {name: "b", label: "after", stroke: "--accent"}]);
    const rows = WHAT.map(([name, label]) => [label, this.mean(a, name), this.mean(b, name)])
      .filter(([, x, y]) => x !== null || y !== null)
      .map(([label, x, y]) => changed(String(label), /** @type {number|null} */ (x), /** @type {number|null} */ (y)));
    rows.unshift(["lasted", duration(a.duration_s), duration(b.duration_s), ""]);
    const byName = (/** @type {RecordJson} */ record) => sums(record.targets.map(t => [t.label.replace(/^target \d+: /, "").replace(/ \(.*$/, ""), t.resident ?? 0]));
    const byMapping = (/** @type {RecordJson} */ record) => sums(record.mappings.map(m => [m.name, m.idle]));
    this.tables.replaceChildren(
      wide(table(["all processes, mean", "before", "after", "change"], rows, "Memory, means over time")),
      wide(table(["process", "before", "after", "change"], both(byName(a), byName(b)), "Resident memory at the end, by name of process")),
      wide(table(["mapping", "before", "after", "change"], both(byMapping(a), byMapping(b)).slice(0, 60), "Idle for 5 s at the end, by mapping")),
    );
  }

  /** Mean over time; null where the record has none. @param {RecordJson} record @param {string} name */
  mean(record, name) {
    const q = record.total.quantities.find(q => q.name === name);
    if (!q) return null;
    const times = this.container.array(q.times_s), means = this.container.array(q.means);
    let sum = 0, weight = 0;
    for (let i = 0; i < times.length; i++) {
      const length = (i + 1 < times.length ? times[i + 1] : Math.max(record.duration_s, times[i] + 1e-9)) - times[i];
      sum += means[i] * length;
      weight += length;
    }
    return weight ? sum / weight : null;
  }
}

/** @param {[string, number][]} pairs */
function sums(pairs) {
  /** @type {Map<string, number>} */
  const found = new Map();
  for (const [name, value] of pairs) found.set(name, (found.get(name) ?? 0) + value);
  return found;
}

/** Rows of both, the largest change first. @param {Map<string, number>} a @param {Map<string, number>} b */
function both(a, b) {
  return [...new Set([...a.keys(), ...b.keys()])].sort((x, y) => Math.abs((b.get(y) ?? 0) - (a.get(y) ?? 0)) - Math.abs((b.get(x) ?? 0) - (a.get(x) ?? 0)))
    .map(name => changed(name, a.get(name) ?? null, b.get(name) ?? null));
}

/** A value that only one record has is absent from the other, not 0. @param {string} name @param {number|null} a @param {number|null} b */
function changed(name, a, b) {
  const change = a === null || b === null ? "—" : (b < a ? "−" : "+") + bytes(Math.abs(b - a)) + (a ? ` (${b < a ? "−" : "+"}${(Math.abs(b - a) / a * 100).toFixed(1)} %)` : "");
  return [name, a === null ? "absent" : bytes(a), b === null ? "absent" : bytes(b), change];
}
