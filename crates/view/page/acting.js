// Operations of schemes and states of guards: over time, and as tables.

import {bytes, duration, percent, table} from "isotherm/format.js";
import {note, wide} from "isotherm/lists.js";

/** @typedef {import("./data.js").RecordJson} RecordJson */

/** Reasons of refusals, by bytes, the largest first. @param {[string, number][]} reasons */
const refusals = reasons => reasons.map(([why, amount]) => `${why.replaceAll("_", " ")} ${bytes(amount)}`).join(", ") || "—";

/** Bytes tried, applied and refused, with reasons; states of the guards. @param {import("./data.js").Container} container @param {RecordJson} record
 * @param {import("./series.js").Linked} linked @returns {HTMLElement[]} */
export function schemes(container, record, linked) {
  if (!record.schemes.length && !record.guards.length) return [note("The record has no operations of schemes.")];
  /** @type {HTMLElement[]} */
  const parts = courses(container, record, linked);
  if (record.schemes.length) {
    const rows = record.schemes.map(s => [
      s.label, s.action + (s.dry_run ? " (dry run)" : ""), String(s.nr_tried), bytes(s.tried), bytes(s.applied), percent(s.tried ? s.applied / s.tried : 0),
      refusals(s.refused), duration(s.took_s), `${duration(s.from_s)} to ${duration(s.to_s)}`,
    ]);
    parts.push(wide(table(["scheme", "action", "regions tried", "tried", "applied", "of tried", "refused", "took", "between"], rows, "Schemes")));
  }
  if (record.guards.length) {
    /** @param {number|null} share */
    const shown = share => share === null ? "?" : percent(share);
    const rows = record.guards.map(g => [
      g.label, String(g.stops), duration(g.closed_s), g.limit_ratio_max === null ? "?" : g.limit_ratio_max.toFixed(2), `${shown(g.slowdown_mean)} / ${shown(g.slowdown_max)}`,
      g.refaults_mean === null ? "?" : `${g.refaults_mean.toFixed(1)} / ${g.refaults_max?.toFixed(1)}`,
    ]);
    parts.push(wide(table(["guard", "stops", "closed for", "largest limit ratio", "waiting for memory, mean / most", "refaults per second, mean / most"], rows, "Guard")));
  }
  if (record.processes.length) {
    const rows = record.processes.map(p => [p.label, bytes(p.tried), bytes(p.applied), refusals(p.refused)]);
    parts.push(wide(table(["process", "tried", "applied", "refused"], rows, "By process")));
  }
  return parts;
}

/** Operations of schemes and states of guards, over time. @param {import("./data.js").Container} container @param {RecordJson} record
 * @param {import("./series.js").Linked} linked */
function courses(container, record, linked) {
  const {schemes, guards} = record, parts = [];
  /** @param {string} label @param {string} action */
  const name = (label, action) => `${label}: ${action}`;
  if (schemes.some(s => s.course.times_s.count)) {
    const named = schemes.map(s => ({...s.course, name: name(s.label, s.action + (s.dry_run ? " (dry run)" : ""))}));
    parts.push(linked.chart(container, "Bytes acted on since the start", named));
  }
  const signalled = guards.filter(g => g.limit_ratio.times_s.count);
  if (signalled.length) {
    const spans = guards.flatMap(g => g.stopped);
    parts.push(linked.chart(container, "The guard's limit ratio: measured cost to its limit (shaded: it stopped the schemes)",
      signalled.map(g => ({...g.limit_ratio, name: g.label})), {format: n => n.toFixed(2), spans}));
  }
  const back = guards.filter(g => g.refaults.times_s.count);
  if (back.length) {
    parts.push(linked.chart(container, "Refaults per second", back.map(g => ({...g.refaults, name: g.label})), {format: n => n.toFixed(n < 10 ? 1 : 0), spans: guards.flatMap(g => g.stopped)}));
  }
  const limited = guards.filter(g => g.stopped.length || container.array(g.allowed.means).some(n => n > 0));
  if (limited.length) {
    parts.push(linked.chart(container, "Bytes that the guard allowed schemes per second",
      limited.map(g => ({...g.allowed, name: g.label})), {spans: guards.flatMap(g => g.stopped)}));
  }
  return parts;
}
