// Memory of the machine: a treemap of control groups and processes, and a table by class.

import {bytes, duration, element, percent, table} from "isotherm/format.js";
import {wide} from "isotherm/lists.js";

/** @typedef {import("./data.js").MachineJson} MachineJson */
/** @typedef {import("./data.js").Ages} Ages */
/** A part of memory; `ages` is null for memory of the kernel and free memory. @typedef {{name: string, size: number, ages: Ages|null, label?: string, parts?: Part[]}} Part */
/** @typedef {{x: number, y: number, w: number, h: number}} Box */

const sum = (/** @type {number[]} */ all) => all.reduce((a, b) => a + b, 0);
/** Idle for two minutes and longer: ages are accessed, then idle by bounds of 0, 1, 5, 30, 120 s and so on. */
const LONG = 5;
/** @param {Ages} ages */
const idle = ages => sum(ages.slice(LONG, -1));
/** @param {Ages} ages */
const unknown = ages => ages[ages.length - 1];

/** @param {MachineJson} machine @param {(label: string) => (() => void)|null} opens returns a function that shows a process, or null */
export function machineOf(machine, opens) {
  const head = element("p", `${bytes(machine.used)} of ${bytes(machine.total)} used at ${duration(machine.time_s)}; of ${percent(machine.known_use)} it is known whose it is, `
    + `of ${percent(machine.known_age)} when it was accessed.`, "note");
  const map = element("div", "", "treemap"), tree = parts(machine);
  map.setAttribute("role", "group");
  map.setAttribute("aria-label", "Users of the machine's memory; the tables below have the same data");
  new ResizeObserver(() => lay(map, tree, opens)).observe(map);
  const legend = element("div", "", "legend");
  for (const [cls, text] of [["hot", "accessed within 2 min"], ["half", "half of it idle for 2 min"], ["cold", "idle for 2 min"], ["unknown", "unknown when"], ["other", "not of users"]]) {
    const key = element("span", "", "key");
    key.append(element("i", "", `heat ${cls}`), text);
    legend.append(key);
  }
  const text = element("details"), pre = element("pre", machine.text);
  pre.tabIndex = 0;
  text.append(element("summary", "The full report"), pre);
  return [head, map, legend, wide(groups(tree)), wide(classes(machine)), text];
}

/** Control groups with their processes and cached files, and the rest of memory. @param {MachineJson} machine @returns {Part[]} */
function parts(machine) {
  /** @type {Map<string, Part[]>} */
  const groups = new Map();
  /** @param {string|null} group @param {Part} part */
  const put = (group, part) => {
    const name = group ?? "no control group", there = groups.get(name);
    if (there) there.push(part);
    else groups.set(name, [part]);
  };
  for (const p of machine.processes) put(p.group, {name: p.label.replace(/^target \d+: /, ""), label: p.label, size: sum(p.ages), ages: p.ages});
  for (const c of machine.cached) put(c.group, {name: "files that nobody maps", size: sum(c.ages), ages: c.ages});
  const found = [...groups].map(([name, of]) => ({name, size: sum(of.map(p => p.size)), ages: added(of.map(p => p.ages)), parts: of.sort((a, b) => b.size - a.size)}));
  if (sum(machine.several)) found.push({name: "mapped by several processes", size: sum(machine.several), ages: machine.several, parts: []});
  const cache = machine.classes.find(c => c.class === "page_cache"), unseen = (cache?.bytes ?? 0) - sum(machine.cached.map(c => sum(c.ages)));
  // A look at all memory takes minutes.
  if (cache?.ages && unseen > 0) found.push({name: "page cache, not looked at", size: unseen, ages: cache.ages.map((_, i, all) => i === all.length - 1 ? unseen : 0), parts: []});
  const told = sum(found.map(p => p.size)), free = machine.total - machine.used;
  const others = machine.classes.filter(c => !c.ages && c.class !== "free");
  for (const c of others) found.push({name: c.class.replaceAll("_", " "), size: c.bytes, ages: null, parts: []});
  const rest = machine.used - told - sum(others.map(c => c.bytes));
  if (rest > 0) found.push({name: "of users, not known whose", size: rest, ages: null, parts: []});
  if (free > 0) found.push({name: "free", size: free, ages: null, parts: []});
  return found.filter(p => p.size > 0).sort((a, b) => b.size - a.size);
}

/** @param {(Ages|null)[]} all @returns {Ages|null} */
function added(all) {
  const known = all.filter(ages => ages !== null);
  return known.length ? known[0].map((_, i) => sum(known.map(ages => ages[i]))) : null;
}

/** @param {HTMLElement} map @param {Part[]} tree @param {(label: string) => (() => void)|null} opens */
function lay(map, tree, opens) {
  const w = map.clientWidth, h = map.clientHeight;
  if (!w || !h) return;
  const made = [];
  for (const {part, box} of squarified(tree, {x: 0, y: 0, w, h})) {
    const outer = cell(part, box, opens), room = {x: 1, y: 17, w: box.w - 4, h: box.h - 20};
    made.push(outer);
    if (!part.parts?.length || room.w < 24 || room.h < 16) continue;
    outer.classList.add("group");
    for (const inner of squarified(part.parts, room)) if (inner.box.w > 2 && inner.box.h > 2) outer.append(cell(inner.part, inner.box, opens));
  }
  map.replaceChildren(...made);
}

/** @param {Part} part @param {Box} box @param {(label: string) => (() => void)|null} opens */
function cell(part, box, opens) {
  const open = part.label ? opens(part.label) : null, made = element(open ? "button" : "div", "", "cell");
  const known = part.ages ? sum(part.ages) - unknown(part.ages) : 0;
  made.title = said(part);
  if (open) made.addEventListener("click", e => { e.stopPropagation(); open(); });
  if (!part.ages) made.classList.add("other");
  else if (known <= unknown(part.ages)) made.classList.add("unknown");
  else made.style.setProperty("--idle", `${(idle(part.ages) / known * 100).toFixed(1)}%`);
  Object.assign(made.style, {left: `${box.x}px`, top: `${box.y}px`, width: `${Math.max(1, box.w - 1)}px`, height: `${Math.max(1, box.h - 1)}px`});
  if (box.w > 34 && box.h > 14) made.append(element("span", `${part.name} ${bytes(part.size)}`));
  return made;
}

/** @param {Part} part */
function said(part) {
  const {ages} = part;
  return `${part.name}: ${bytes(part.size)}${ages ? `, of it idle for 2 min ${bytes(idle(ages))}, unknown when ${bytes(unknown(ages))}` : ""}`;
}

/** Boxes by size, as square as they get (Bruls, Huizing and van Wijk, Squarified Treemaps, 2000).
 * @param {Part[]} all the largest first @param {Box} room @returns {{part: Part, box: Box}[]} */
export function squarified(all, room) {
  const scale = room.w * room.h / Math.max(1, sum(all.map(p => p.size)));
  /** @type {{part: Part, box: Box}[]} */
  const found = [];
  let {x, y, w, h} = room, from = 0;
  while (from < all.length && w > 0 && h > 0) {
    const side = Math.min(w, h);
    /** The worst aspect ratio of a row. @param {number} to */
    const worst = to => {
      const areas = all.slice(from, to).map(p => p.size * scale), total = sum(areas), thick = total / side;
      return Math.max(...areas.map(area => { const long = area / thick; return Math.max(thick / long, long / thick); }));
    };
    let to = from + 1;
    while (to < all.length && worst(to + 1) <= worst(to)) to++;
    const areas = all.slice(from, to).map(p => p.size * scale), thick = sum(areas) / side;
    let along = 0;
    areas.forEach((area, i) => {
      const long = area / thick;
      found.push({part: all[from + i], box: w >= h ? {x, y: y + along, w: thick, h: long} : {x: x + along, y, w: long, h: thick}});
      along += long;
    });
    if (w >= h) { x += thick; w -= thick; } else { y += thick; h -= thick; }
    from = to;
  }
  return found;
}

/** @param {Part[]} tree */
function groups(tree) {
  const rows = tree.slice(0, 200).map(p => [p.name, bytes(p.size), ...p.ages ? [bytes(idle(p.ages)), percent(idle(p.ages) / Math.max(1, p.size)), bytes(unknown(p.ages))] : ["—", "—", "—"], p.parts?.length ? String(p.parts.length) : "—"]);
  return table(["who", "memory", "idle for 2 min", "of it", "unknown when", "parts"], rows, "By user: control groups, and memory without a user");
}

/** @param {MachineJson} machine */
function classes(machine) {
  const bounds = machine.age_bounds_s, head = ["class", "memory", "accessed", ...[0, ...bounds].map((b, i) => i < bounds.length ? `idle to ${duration(bounds[i])}` : `idle ${duration(b)} and longer`), "unknown"];
  const rows = machine.classes.map(c => [c.class.replaceAll("_", " "), bytes(c.bytes), ...c.ages ? c.ages.map(bytes) : head.slice(2).map(() => "—")]);
  return table(head, rows, "By class");
}

