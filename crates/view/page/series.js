// Memory over time, drawn by uPlot below the heat map for the same seconds.

import {byteTicks, bytes, duration, element, table, timeTicks} from "isotherm/format.js";
import {colour} from "isotherm/heat.js";
import {wide} from "isotherm/lists.js";

/** @typedef {import("./data.js").Container} Container */
/** @typedef {import("./data.js").QuantityJson} QuantityJson */
/** One line or area. @typedef {{name: string, label: string, stroke: string, fill?: string, dash?: number[]}} Look */

/** Areas on top of each other, from the most used memory up; colours of Okabe and Ito, and greys. @type {Look[]} */
const STACKED = [
  {name: "touched", label: "in use", stroke: "#d55e00", fill: "#d55e00cc"},
  {name: "idle", label: "idle < 5 s", stroke: "#e69f00", fill: "#e69f0099"},
  {name: "idle_5s", label: "idle 5 s", stroke: "#56b4e9", fill: "#56b4e999"},
  {name: "idle_30s", label: "idle 30 s", stroke: "#0072b2", fill: "#0072b299"},
  {name: "idle_2min", label: "idle 2 min", stroke: "#1b3a5c", fill: "#1b3a5ccc"},
  {name: "unknown", label: "unknown", stroke: "#8d949e", fill: "#8d949e99"},
];
/** @type {Look[]} */
const LINES = [
  {name: "rss", label: "RSS", stroke: "--fg"},
  {name: "swapped", label: "swapped out", stroke: "#009e73", dash: [6, 3]},
  {name: "swap", label: "swap", stroke: "#009e73", dash: [2, 3]},
];

/** Colours of lines that have none of their own: Okabe and Ito's. */
const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
/** Looks for lines with these names. @param {string[]} names @returns {Look[]} */
export const lined = names => names.map((name, i) => ({name, label: name, stroke: PALETTE[i % PALETTE.length], dash: i < PALETTE.length ? undefined : [6, 3]}));

/** A chart that shows the same time as others. */
export class Chart {
  /** @param {HTMLElement} place @param {string} title
   * @param {{zoomed: (t0: number, t1: number) => void, margins?: () => {left: number, right: number}, format?: (value: number) => string,
   *   spans?: [number, number][]}} options `spans`: times that are shaded */
  constructor(place, title, options) {
    this.place = place;
    this.title = title;
    this.options = {margins: () => ({left: 76, right: 28}), format: bytes, spans: /** @type {[number, number][]} */ ([]), ...options};
    /** @type {uPlot|null} */
    this.plot = null;
    /** @type {[number, number]} */
    this.range = [0, 1];
    /** @type {{label: string, values: (number|null)[]}[]} */
    this.told = [];
    /** @type {number[]} */
    this.times = [];
    new ResizeObserver(() => this.resize()).observe(place);
  }

  /** @param {Container} container @param {QuantityJson[]} quantities @param {Look[]} stacked @param {Look[]} lines */
  show(container, quantities, stacked = STACKED, lines = LINES) {
    /** @param {Look} look */
    const of = look => quantities.find(q => q.name === look.name);
    const below = stacked.filter(of), beside = lines.filter(of);
    /** @param {Look} look @returns {[number[], number[]]} */
    const read = look => {
      const q = /** @type {QuantityJson} */ (of(look));
      return [Array.from(container.array(q.times_s)), Array.from(container.array(q.means))];
    };
    const joined = uPlot.join([...below, ...beside].map(look => /** @type {uPlot.AlignedData} */ (read(look))));
    this.times = /** @type {number[]} */ (joined[0] ?? []);
    const values = /** @type {(number|null)[][]} */ (joined.slice(1));
    this.told = [...below, ...beside].map((look, i) => ({label: look.label, values: values[i]}));
    // Each area reaches up to the sum of those beneath it.
    for (let i = 1; i < below.length; i++) values[i] = values[i].map((v, at) => v === null || v === undefined ? null : v + (values[i - 1][at] ?? 0));
    this.draw([this.times, ...values], below, beside);
  }

  /** @param {any[]} data @param {Look[]} below @param {Look[]} beside */
  draw(data, below, beside) {
    this.plot?.destroy();
    const ink = () => colour("--dim"), line = () => colour("--line"), {options} = this, isBytes = options.format === bytes;
    /** @type {uPlot.Options} */
    const settings = {
      width: Math.max(120, this.place.clientWidth), height: 190,
      padding: [10, options.margins().right, 0, 0],
      cursor: {sync: {key: "isotherm"}, drag: {x: true, y: false, setScale: false}, points: {size: 6}},
      hooks: {drawClear: [plot => this.shade(plot)], setSelect: [plot => {
        if (plot.select.width > 2) options.zoomed(plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x"));
        plot.setSelect({left: 0, top: 0, width: 0, height: 0}, false);
      }]},
      scales: {x: {time: false, range: () => this.range}, y: {range: (_, __, most) => [0, Math.max(most * 1.05, isBytes ? 4096 : 1e-9)]}},
      axes: [
        {stroke: ink, grid: {show: false}, ticks: {stroke: line}, splits: (plot, _, from, to) => timeTicks(from, to, plot.width / 110), values: (_, splits) => splits.map(duration)},
        {stroke: ink, size: () => options.margins().left, grid: {stroke: line, width: 1}, ticks: {stroke: line}, ...isBytes ? {splits: (/** @type {uPlot} */ _, /** @type {number} */ __, /** @type {number} */ ___, /** @type {number} */ most) => byteTicks(most, 5)} : {}, values: (_, splits) => splits.map(options.format)},
      ],
      legend: {live: true},
      series: [
        {label: "at", value: (_, t) => t === null ? "—" : duration(t)},
        ...[...below, ...beside].map((look, i) => ({
          label: look.label, stroke: () => colour(look.stroke), width: i < below.length ? 1 : 1.5, dash: look.dash, spanGaps: true,
          points: {show: false}, fill: i === 0 && look.fill ? look.fill : undefined,
          value: (/** @type {uPlot} */ _, /** @type {number|null} */ __, /** @type {number} */ ___, /** @type {number|null} */ at) => at === null ? "—" : this.said(this.told[i].values[at]),
        })),
      ],
      bands: below.slice(1).map((look, i) => ({series: /** @type {[number, number]} */ ([i + 2, i + 1]), fill: look.fill})),
    };
    this.plot = new uPlot(settings, data, this.place);
    const picture = this.plot.root.querySelector("canvas");
    picture?.setAttribute("role", "img");
    picture?.setAttribute("aria-label", `${this.title}; the button Table shows it as numbers`);
  }

  /** @param {number|null|undefined} value */
  said(value) { return value === null || value === undefined ? "—" : this.options.format(value); }

  /** Shades what lies behind the lines. @param {uPlot} plot */
  shade(plot) {
    const {ctx, bbox} = plot;
    ctx.fillStyle = "#d55e0033";
    for (const [from, to] of this.options.spans) {
      const [x0, x1] = [from, to].map(t => Math.min(bbox.left + bbox.width, Math.max(bbox.left, plot.valToPos(t, "x", true))));
      if (x1 > bbox.left && x0 < bbox.left + bbox.width) ctx.fillRect(x0, bbox.top, Math.max(1, x1 - x0), bbox.height);
    }
  }

  /** Shows these seconds. @param {number} t0 @param {number} t1 */
  setRange(t0, t1) {
    this.range = [t0, t1];
    this.plot?.setScale("x", {min: t0, max: t1});
  }

  /** Draws again, e.g. in another theme. */
  redraw() { this.plot?.redraw(true, true); }

  resize() {
    if (!this.plot || !this.place.clientWidth) return;
    this.plot.setSize({width: Math.max(120, this.place.clientWidth), height: 190});
  }

  /** A table of the values in the seconds shown, with a limited number of rows. */
  table(most = 40) {
    const within = this.times.map((_, i) => i).filter(i => this.times[i] >= this.range[0] && this.times[i] <= this.range[1]);
    const every = Math.max(1, Math.ceil(within.length / most));
    const rows = within.filter((_, i) => i % every === 0).map(i => [duration(this.times[i]), ...this.told.map(t => this.said(t.values[i]))]);
    return table(["time", ...this.told.map(t => t.label)], rows, this.title);
  }
}

/** Charts that show the same seconds as the heat map and zoom it. */
export class Linked {
  /** @param {(t0: number, t1: number) => void} zoomed */
  constructor(zoomed) {
    this.zoomed = zoomed;
    /** @type {Chart[]} */
    this.charts = [];
    /** @type {[number, number]} */
    this.range = [0, 1];
  }

  /** Replaces the charts. */
  clear() { this.charts = []; }

  /** A chart with its title, and its values as a table below. @param {import("./data.js").Container} container @param {string} title
   * @param {QuantityJson[]} lines @param {{format?: (value: number) => string, spans?: [number, number][]}} [how] */
  chart(container, title, lines, how = {}) {
    const made = element("section"), place = element("div", "", "plot"), numbers = element("details");
    const chart = new Chart(place, title, {zoomed: this.zoomed, ...how});
    chart.range = this.range;
    chart.show(container, lines, [], lined(lines.map(line => line.name)));
    this.charts.push(chart);
    numbers.append(element("summary", "As numbers"));
    numbers.addEventListener("toggle", () => numbers.open && numbers.replaceChildren(numbers.children[0], wide(chart.table())));
    made.append(element("h2", title), place, numbers);
    return made;
  }

  /** @param {number} t0 @param {number} t1 */
  setRange(t0, t1) {
    this.range = [t0, t1];
    for (const chart of this.charts) chart.setRange(t0, t1);
  }

  /** After a change of the page's size or colours. */
  redraw() {
    for (const chart of this.charts) {
      chart.resize();
      chart.redraw();
    }
  }
}
