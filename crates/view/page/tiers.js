// Memory on several nodes: use of each, and migrations between them.

import {bytes, element, percent, table} from "isotherm/format.js";
import {wide} from "isotherm/lists.js";

/** @typedef {import("./data.js").Container} Container */

/** @param {Container} container @param {import("./data.js").TiersJson} tiers @param {import("./series.js").Linked} linked */
export function tiersOf(container, tiers, linked) {
  /** @type {HTMLElement[]} */
  const parts = [element("p", "The record does not say which node is faster; it has only migrations from node to node.", "note")];
  /** @param {import("./data.js").SeriesJson} series */
  const last = series => series.means.count ? container.array(series.means)[series.means.count - 1] : null;
  if (tiers.nodes.length) {
    const rows = tiers.nodes.map(n => {
      const [used, mapped, idle] = [n.used, n.mapped, n.idle].map(last);
      return [`node ${n.node}`, bytes(n.total), ...[used, mapped, idle].map(v => v === null ? "?" : bytes(v)), used === null ? "?" : percent(used / Math.max(1, n.total))];
    });
    parts.push(wide(table(["node", "memory", "used", "mapped by processes", "of that idle 2 min", "full"], rows, "Nodes, at the last sample")));
  }
  for (const n of tiers.nodes) {
    parts.push(linked.chart(container, `Node ${n.node}, ${bytes(n.total)}`, [
      {...n.used, name: "used"}, {...n.mapped, name: "mapped by processes"}, {...n.idle, name: "of that idle for 2 min"},
    ]));
  }
  if (tiers.ways.length) {
    const named = tiers.ways.map(way => ({...way.course, name: `from node ${way.from} to ${way.to}`}));
    parts.push(linked.chart(container, "Moved by schemes since the start", named));
    const rows = tiers.ways.map(way => [`node ${way.from}`, `node ${way.to}`, bytes(way.bytes)]);
    parts.push(wide(table(["from", "to", "moved"], rows, "Moved by schemes")));
  }
  if (tiers.counters.length) {
    /** @param {number} pages */
    const format = pages => Math.round(pages).toLocaleString("en");
    parts.push(linked.chart(container, "Pages moved by the kernel, by its counters", tiers.counters.map(c => ({...c.course, name: c.name})), {format}));
    parts.push(wide(table(["counter", "pages"], tiers.counters.map(c => [c.name, format(c.pages)]), "The kernel's counters of pages, since the start")));
  }
  return parts;
}
