// The heat map's cells as pictures of 256 by 256. They are computed when first shown and cached, so panning only draws.

import {above} from "isotherm/data.js";

/** @typedef {import("./data.js").Layer} Layer */
/** @typedef {{place: number, units: number}} Segment */
/** A tile: colours, and masks of unknown and swapped cells, null without such cells.
 * @typedef {{colours: HTMLCanvasElement, unknown: HTMLCanvasElement|null, swapped: HTMLCanvasElement|null}} Tile */

export const SIZE = 256;
/** Maximum number of cached tiles; each takes a quarter of a MiB. */
const MOST = 240;

/** Sums for the cells of one tile. */
const rate = new Float64Array(SIZE * SIZE), known = new Float64Array(SIZE * SIZE);
const unknown = new Float64Array(SIZE * SIZE), swapped = new Float64Array(SIZE * SIZE);

/** Colours by rate: a rate of 0 differs clearly from the smallest above it.
 * @param {[number, number, number][]} ramp */
export function colours(ramp) {
  const FLOOR = 0.15;
  /** @param {number} share @returns {[number, number, number]} */
  return share => {
    const at = share <= 0 ? 0 : (FLOOR + (1 - FLOOR) * Math.sqrt(Math.min(1, share))) * (ramp.length - 1);
    const low = Math.min(Math.floor(at), ramp.length - 2), part = at - low;
    /** @param {0|1|2} i */
    const mix = i => Math.round(ramp[low][i] + (ramp[low + 1][i] - ramp[low][i]) * part);
    return [mix(0), mix(1), mix(2)];
  };
}

/** The tiles of one layer. */
export class Tiles {
  /** @param {Layer} layer @param {{most: number, swapped: number, unknown: number}} codes @param {(share: number) => [number, number, number]} colour */
  constructor(layer, codes, colour) {
    this.layer = layer;
    this.codes = codes;
    /** @type {Map<string, Tile>} */
    this.kept = new Map();
    this.table = new Uint32Array(1001);
    for (let i = 0; i <= 1000; i++) {
      const [r, g, b] = colour((i / 1000) ** 2);
      this.table[i] = 0xff000000 | b << 16 | g << 8 | r;
    }
    /** The tile that holds all of a segment, by segment. */
    this.whole = layer.segments.map(segment => {
      const levels = {x: level(layer.nrColumns), y: level(segment.units)};
      return {levels, tile: this.make(segment, levels, 0, 0)};
    });
  }

  /** A cached tile, or null; `levels` are powers of two: columns and places per cell.
   * @param {number} segment @param {{x: number, y: number}} levels @param {number} x @param {number} y */
  get(segment, levels, x, y) {
    const name = `${segment}/${levels.x}/${levels.y}/${x}/${y}`;
    const tile = this.kept.get(name);
    if (!tile) return null;
    this.kept.delete(name);
    this.kept.set(name, tile);
    return tile;
  }

  /** Computes a tile, and drops the least recently used one.
   * @param {number} segment @param {{x: number, y: number}} levels @param {number} x @param {number} y */
  add(segment, levels, x, y) {
    const tile = this.make(this.layer.segments[segment], levels, x, y);
    this.kept.set(`${segment}/${levels.x}/${levels.y}/${x}/${y}`, tile);
    if (this.kept.size > MOST) this.kept.delete(/** @type {string} */ (this.kept.keys().next().value));
    return tile;
  }

  /** @param {Segment} segment @param {{x: number, y: number}} levels @param {number} x @param {number} y @returns {Tile} */
  make(segment, levels, x, y) {
    this.count(segment, levels, x, y);
    const picture = canvas(), pen = context(picture), image = pen.createImageData(SIZE, SIZE);
    const pixels = new Uint32Array(image.data.buffer);
    let isUnknown = false, isSwapped = false;
    for (let i = 0; i < pixels.length; i++) {
      if (known[i] > 0 && known[i] >= unknown[i] && known[i] >= swapped[i]) {
        // Rounded up, so that a rate above 0 is visible.
        pixels[i] = this.table[Math.ceil(Math.sqrt(rate[i] / known[i] / this.codes.most) * 1000)];
      } else if (swapped[i] > unknown[i]) isSwapped = true;
      else if (unknown[i] > 0) isUnknown = true;
    }
    pen.putImageData(image, 0, 0);
    return {
      colours: picture,
      unknown: isUnknown ? mask(i => unknown[i] > known[i] && unknown[i] >= swapped[i]) : null,
      swapped: isSwapped ? mask(i => swapped[i] > known[i] && swapped[i] > unknown[i]) : null,
    };
  }

  /** Sums up the pieces in each cell. @param {Segment} segment @param {{x: number, y: number}} levels @param {number} x @param {number} y */
  count(segment, levels, x, y) {
    for (const sums of [rate, known, unknown, swapped]) sums.fill(0);
    const {layer, codes} = this, {places, units, rates} = layer;
    const cell = 2 ** levels.y, wide = 2 ** levels.x;
    const low = segment.place + y * SIZE * cell, high = Math.min(low + SIZE * cell, segment.place + segment.units);
    const first = x * SIZE * wide, last = Math.min(first + SIZE * wide, layer.nrColumns);
    for (let column = first; column < last; column++) {
      const across = Math.floor((column - first) / wide), end = layer.columns[column + 1];
      let at = above(places, low, layer.columns[column], end);
      if (at > layer.columns[column] && places[at - 1] + units[at - 1] > low) at--;
      for (; at < end && places[at] < high; at++) {
        const from = Math.max(low, places[at]), to = Math.min(high, places[at] + units[at]);
        const code = rates[at], sums = code <= codes.most ? known : code === codes.swapped ? swapped : unknown;
        for (let row = Math.floor((from - low) / cell); row * cell < to - low; row++) {
          const part = Math.min(to - low, (row + 1) * cell) - Math.max(from - low, row * cell);
          const i = (SIZE - 1 - row) * SIZE + across;
          sums[i] += part;
          if (sums === known) rate[i] += part * code;
        }
      }
    }
  }
}

/** The power of two that makes `count` fit into a tile. @param {number} count */
function level(count) { return Math.max(0, Math.ceil(Math.log2(Math.max(1, count) / SIZE))); }

function canvas() {
  const made = document.createElement("canvas");
  made.width = made.height = SIZE;
  return made;
}

/** @param {HTMLCanvasElement} of @returns {CanvasRenderingContext2D} */
export function context(of) {
  const pen = of.getContext("2d");
  if (!pen) throw new Error("this browser draws nothing on a canvas");
  return pen;
}

/** @param {(i: number) => boolean} holds */
function mask(holds) {
  const made = canvas(), pen = context(made), image = pen.createImageData(SIZE, SIZE);
  for (let i = 0; i < SIZE * SIZE; i++) if (holds(i)) image.data[i * 4 + 3] = 255;
  pen.putImageData(image, 0, 0);
  return made;
}
