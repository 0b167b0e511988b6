// Curves of savings by reclaim threshold, and of huge pages by bound on waste, from page scans and without a replay.

import {bytes, duration, element, finePercent, percent, table} from "isotherm/format.js";
import {wide} from "isotherm/lists.js";
import {draw} from "isotherm/plot.js";

/** @typedef {import("./data.js").CurvesJson} CurvesJson */

/** Thresholds that are listed, in seconds. */
const LISTED = [1, 2, 3, 5, 7, 10, 15, 20, 30, 60, 120, 300, 600, 1800, 3600];

/** Reclaiming. @param {HTMLElement} place @param {import("./data.js").Container} container @param {CurvesJson} curves */
export function reclaimCurve(place, container, curves) {
  const plot = element("div", "", "plot"), cost = duration(curves.refault_cost_s);
  /** @param {import("./data.js").ReclaimJson} of */
  const read = of => ({
    at: Array.from(container.array(of.thresholds_s)), share: container.array(of.saved_share), saved: container.array(of.saved),
    refaults: container.array(of.refaults_per_s), slowdown: container.array(of.slowdown),
  });
  const idle = read(curves.idle), backoff = read(curves.backoff);
  place.replaceChildren(element("p", `Savings and costs of reclaiming all memory that is idle for an age, counted from page scans ${duration(curves.scan_interval_s)} apart: `
    + `exact for what was seen; a refault is taken to cost ${cost}. ${bytes(curves.resident_mean)} were resident in the mean${curves.unknown_mean ? `, ${bytes(curves.unknown_mean)} of it unknown, which is never taken` : ""}.`, "note"), plot);
  if (!idle.at.length) {
    plot.replaceWith(element("p", "No memory was idle for a whole scan interval.", "note"));
    return;
  }
  draw(plot, [idle.at, Array.from(idle.share), Array.from(idle.slowdown)], {
    x: duration, xLabel: "idle for", log: true, y: percent, z: finePercent,
    lines: [{label: "saved", stroke: "--accent", scale: "y"}, {label: "slower", stroke: "#d55e00", scale: "z"}],
  });
  /** @param {ReturnType<typeof read>} of */
  const rows = of => {
    const places = LISTED.map(t => of.at.findIndex(at => at >= t * .999)).filter((at, i, all) => at >= 0 && all.indexOf(at) === i);
    return places.map(i => [duration(of.at[i]), bytes(of.saved[i]), percent(of.share[i]), of.refaults[i].toFixed(1), finePercent(of.slowdown[i])]);
  };
  const head = ["idle for", "saved", "of resident", "refaults a second", "slower"];
  place.append(wide(table(head, rows(idle), "By threshold")));
  if (backoff.at.length) place.append(wide(table(head, rows(backoff), "By the age that the guard gives single pages")));
}

/** Huge pages. @param {HTMLElement} place @param {import("./data.js").HugeJson} huge */
export function hugeCurve(place, huge) {
  const plot = element("div", "", "plot"), bounds = huge.bounds.filter(p => p.max_waste !== null);
  const recorded = huge.recorded_huge_mean ? ` ${bytes(huge.recorded_huge_mean)} were in huge pages when it was recorded, and are left out.` : "";
  place.replaceChildren(element("p", `Coverage by bound on waste (bytes of a huge page that are never written): the share of touched translations that huge pages would cover. It is not time.${recorded}`, "note"), plot);
  const shown = bounds.filter(p => (p.max_waste ?? 0) <= 1);
  draw(plot, [shown.map(p => p.max_waste), shown.map(p => p.coverage), shown.map(p => p.waste_share)], {
    x: percent, xLabel: "waste at most", points: true, y: percent, z: percent,
    lines: [{label: "covered", stroke: "--accent", scale: "y"}, {label: "wasted, of resident", stroke: "#d55e00", scale: "z"}],
  });
  /** @param {string} name @param {import("./data.js").HugePoint} p */
  const row = (name, p) => [name, bytes(p.huge_mean_bytes), bytes(p.waste_mean_bytes), percent(p.waste_share), percent(p.waste_of_always), percent(p.coverage)];
  const rows = huge.named.map(([name, point]) => row(name, point));
  rows.push(...shown.map(point => row(`waste at most ${percent(point.max_waste ?? 0)}`, point)));
  place.append(wide(table(["policy", "in huge pages", "waste", "of resident", "of always' waste", "covered"], rows, "By policy, means over time")));
}
