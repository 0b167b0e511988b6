// Small plots of a few lines over any quantity. series.js draws those over the record's time.

import {colour} from "isotherm/heat.js";

/** @type {WeakMap<HTMLElement, uPlot>} */
const plots = new WeakMap();

/** Draws lines, or updates the plot that is there.
 * @param {HTMLElement} place @param {any[]} data
 * @param {{x: (n: number) => string, xLabel?: string, y: (n: number) => string, ticks?: (most: number) => number[], z?: (n: number) => string, log?: boolean, at?: number,
 *   points?: boolean, lines: {label: string, stroke: string, scale: string, fill?: string, dash?: number[]}[]}} how */
export function draw(place, data, how) {
  const there = plots.get(place);
  if (there) {
    /** @type {any} */ (there).marked = how.at;
    there.setData(/** @type {any} */ (data));
    return;
  }
  const ink = () => colour("--dim"), line = () => colour("--line");
  const from = (/** @type {uPlot} */ _, /** @type {number} */ __, /** @type {number} */ most) => /** @type {[number, number]} */ ([0, Math.max(most * 1.05, 1e-6)]);
  const {ticks} = how;
  const plot = new uPlot({
    width: Math.max(200, place.clientWidth), height: 190, cursor: {points: {size: 6}},
    scales: {x: {time: false, distr: how.log ? 3 : 1}, y: {range: from}, ...how.z ? {z: {range: from}} : {}},
    axes: [
      {stroke: ink, grid: {show: false}, ticks: {stroke: line}, values: (_, splits) => splits.map(n => n === null ? "" : how.x(n))},
      {stroke: ink, size: 76, grid: {stroke: line, width: 1}, ticks: {stroke: line}, values: (_, splits) => splits.map(how.y), ...ticks ? {splits: (/** @type {uPlot} */ _, /** @type {number} */ __, /** @type {number} */ ___, /** @type {number} */ most) => ticks(most)} : {}},
      ...how.z ? [{scale: "z", side: /** @type {1} */ (1), stroke: ink, size: 76, grid: {show: false}, ticks: {stroke: line}, values: (/** @type {uPlot} */ _, /** @type {number[]} */ splits) => splits.map(how.z ?? String)}] : [],
    ],
    series: [
      {label: how.xLabel ?? "at", value: (_, v) => v === null ? "—" : how.x(v)},
      ...how.lines.map(look => ({label: look.label, scale: look.scale, stroke: () => colour(look.stroke), fill: look.fill, width: 1.5, dash: look.dash, points: {show: how.points ?? false, size: 5},
        value: (/** @type {uPlot} */ _, /** @type {number|null} */ v) => v === null ? "—" : (look.scale === "z" && how.z ? how.z : how.y)(v)})),
    ],
    hooks: {draw: [plot => {
      const at = /** @type {any} */ (plot).marked ?? how.at;
      if (at === undefined) return;
      const x = plot.valToPos(at, "x", true);
      plot.ctx.strokeStyle = ink();
      plot.ctx.setLineDash([4, 4]);
      plot.ctx.beginPath();
      plot.ctx.moveTo(x, plot.bbox.top);
      plot.ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
      plot.ctx.stroke();
      plot.ctx.setLineDash([]);
    }]},
  }, /** @type {any} */ (data), place);
  const picture = plot.root.querySelector("canvas");
  picture?.setAttribute("role", "img");
  picture?.setAttribute("aria-label", how.lines.map(l => l.label).join(" and ") + "; the table below has the numbers");
  plots.set(place, plot);
  new ResizeObserver(() => place.clientWidth && plot.setSize({width: Math.max(200, place.clientWidth), height: 190})).observe(place);
}
