// Memory in a part of the picture, by mapping: sums over its pieces.

import {above} from "isotherm/data.js";

/** @typedef {import("./data.js").Layer} Layer */
/** Means over the selected time, in bytes; `rate` of the known bytes, 0 to 1, null if none is known.
 * @typedef {{name: string, bytes: number, accessed: number, idle: number, unknown: number, swapped: number, rate: number|null, age: number}} Row */

/** Rows by mapping, the largest first. @param {Layer} layer @param {{most: number, swapped: number, unknown: number}} codes
 * @param {{t0: number, t1: number, from: number, to: number}} part @returns {Row[]} */
export function byMapping(layer, codes, part) {
  const first = Math.max(0, Math.floor((part.t0 - layer.start) / layer.step));
  const last = Math.min(layer.nrColumns, Math.max(first + 1, Math.ceil((part.t1 - layer.start) / layer.step)));
  /** @type {Map<string, Row & {weight: number}>} */
  const rows = new Map();
  let watched = 0;
  for (let column = first; column < last; column++) {
    if (!layer.isWatched(column)) continue;
    watched++;
    const end = layer.columns[column + 1], walk = names(layer);
    let at = above(layer.places, part.from, layer.columns[column], end);
    if (at > layer.columns[column] && layer.places[at - 1] + layer.units[at - 1] > part.from) at--;
    for (; at < end && layer.places[at] < part.to; at++) {
      const from = Math.max(part.from, layer.places[at]), to = Math.min(part.to, layer.places[at] + layer.units[at]);
      walk(from, to, (name, units) => add(rows, name, units * layer.unit, layer.rates[at], layer.age(at), codes));
    }
  }
  const found = [...rows.values()];
  for (const row of found) {
    if (row.weight) {
      row.rate = /** @type {number} */ (row.rate) / row.weight;
      row.age /= row.weight;
    }
    for (const key of /** @type {const} */ (["bytes", "accessed", "idle", "unknown", "swapped"])) row[key] /= Math.max(1, watched);
  }
  return found.sort((a, b) => b.bytes + b.swapped - a.bytes - a.swapped);
}

/** @param {Map<string, Row & {weight: number}>} rows @param {string} name @param {number} size @param {number} code @param {number} age
 * @param {{most: number, swapped: number, unknown: number}} codes */
function add(rows, name, size, code, age, codes) {
  let row = rows.get(name);
  if (!row) rows.set(name, row = {name, bytes: 0, accessed: 0, idle: 0, unknown: 0, swapped: 0, rate: null, age: 0, weight: 0});
  if (code === codes.swapped) {
    row.swapped += size;
    return;
  }
  row.bytes += size;
  if (code === codes.unknown) row.unknown += size;
  else {
    row[code > 0 ? "accessed" : "idle"] += size;
    row.rate = (row.rate ?? 0) + code / codes.most * size;
    row.age += age * size;
    row.weight += size;
  }
}

/** Divides ranges of places by mapping; the ranges must be in order. @param {Layer} layer
 * @returns {(from: number, to: number, take: (name: string, units: number) => void) => void} */
function names(layer) {
  const {mappings} = layer;
  let at = 0;
  return (from, to, take) => {
    while (at < mappings.length && mappings[at] + mappings[at + 1] <= from) at += 3;
    for (let i = at; from < to; i += 3) {
      const start = i < mappings.length ? mappings[i] : Infinity;
      if (start > from) {
        const end = Math.min(to, start);
        take("(not mapped)", end - from);
        from = end;
      }
      if (from >= to) return;
      const end = Math.min(to, start + mappings[i + 1]);
      take(layer.names[mappings[i + 2]], end - from);
      from = end;
    }
  };
}
