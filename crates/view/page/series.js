// What memory came to over time, drawn by uPlot beneath the heat map and over the same seconds.

import {byteTicks, bytes, duration, table, timeTicks} from "isotherm/format.js";
import {colour} from "isotherm/heat.js";

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

/** A chart that follows the time that others show. */
export class Chart {
  /** @param {HTMLElement} place @param {string} title
   * @param {{zoomed: (t0: number, t1: number) => void, margins: () => {left: number, right: number}}} options */
  constructor(place, title, options) {
    this.place = place;
    this.title = title;
    this.options = options;
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
    const ink = () => colour("--dim"), line = () => colour("--line"), {options} = this;
    /** @param {string} name */
    const real = name => name.startsWith("--") ? colour(name) : name;
    /** @type {uPlot.Options} */
    const settings = {
      width: Math.max(120, this.place.clientWidth), height: 190,
      padding: [10, options.margins().right, 0, 0],
      cursor: {sync: {key: "isotherm"}, drag: {x: true, y: false, setScale: false}, points: {size: 6}},
      hooks: {setSelect: [plot => {
        if (plot.select.width > 2) options.zoomed(plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x"));
        plot.setSelect({left: 0, top: 0, width: 0, height: 0}, false);
      }]},
      scales: {x: {time: false, range: () => this.range}, y: {range: (_, __, most) => [0, Math.max(most * 1.05, 4096)]}},
      axes: [
        {stroke: ink, grid: {show: false}, ticks: {stroke: line}, splits: (plot, _, from, to) => timeTicks(from, to, plot.width / 110), values: (_, splits) => splits.map(duration)},
        {stroke: ink, size: () => options.margins().left, grid: {stroke: line, width: 1}, ticks: {stroke: line}, splits: (_, __, ___, most) => byteTicks(most, 5), values: (_, splits) => splits.map(bytes)},
      ],
      legend: {live: true},
      series: [
        {label: "at", value: (_, t) => t === null ? "—" : duration(t)},
        ...[...below, ...beside].map((look, i) => ({
          label: look.label, stroke: () => real(look.stroke), width: i < below.length ? 1 : 1.5, dash: look.dash, spanGaps: true,
          points: {show: false}, fill: i === 0 && look.fill ? look.fill : undefined,
          value: (/** @type {uPlot} */ _, /** @type {number|null} */ __, /** @type {number} */ ___, /** @type {number|null} */ at) => at === null ? "—" : sized(this.told[i].values[at]),
        })),
      ],
      bands: below.slice(1).map((look, i) => ({series: /** @type {[number, number]} */ ([i + 2, i + 1]), fill: look.fill})),
    };
    this.plot = new uPlot(settings, data, this.place);
    const picture = this.plot.root.querySelector("canvas");
    picture?.setAttribute("role", "img");
    picture?.setAttribute("aria-label", `${this.title}; the button Table shows it as numbers`);
  }

  /** Shows these seconds. @param {number} t0 @param {number} t1 */
  setRange(t0, t1) {
    this.range = [t0, t1];
    this.plot?.setScale("x", {min: t0, max: t1});
  }

  /** Draws anew, e.g. after another theme. */
  redraw() { this.plot?.redraw(true, true); }

  resize() {
    if (!this.plot || !this.place.clientWidth) return;
    this.plot.setSize({width: Math.max(120, this.place.clientWidth), height: 190});
  }

  /** Its numbers within the seconds shown, at most so many moments. */
  table(most = 40) {
    const within = this.times.map((_, i) => i).filter(i => this.times[i] >= this.range[0] && this.times[i] <= this.range[1]);
    const every = Math.max(1, Math.ceil(within.length / most));
    const rows = within.filter((_, i) => i % every === 0).map(i => [duration(this.times[i]), ...this.told.map(t => sized(t.values[i]))]);
    return table(["time", ...this.told.map(t => t.label)], rows, this.title);
  }
}

/** @param {number|null|undefined} value */
const sized = value => value === null || value === undefined ? "—" : bytes(value);
