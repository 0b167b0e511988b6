// The heat map: access rate of one process over time and address, with zoom, pointer and selection.

import {bytes, duration, hex, percent, timeTicks} from "isotherm/format.js";
import {SIZE, Tiles, context} from "isotherm/tiles.js";

/** @typedef {import("./data.js").Layer} Layer */
/** A part of the picture, from the lowest address up: a segment, or a gap of `gap` bytes.
 * @typedef {{v: number, size: number, segment: number, gap: number}} Band */
/** The visible part: seconds, and heights in the picture. @typedef {{t0: number, t1: number, v0: number, v1: number}} View */
/** The selected part: seconds, and places on the axis. @typedef {{t0: number, t1: number, from: number, to: number}} Selection */

const GAP_SHARE = 0.03, LEAST_SHARE = 1 / 40, TOP = 10, BOTTOM = 30;
/** Milliseconds per frame for drawing tiles. */
const MAKING = 8;

/** A colour of the page (`--name`), or the colour itself. @param {string} name */
export const colour = name => name.startsWith("--") ? getComputedStyle(document.documentElement).getPropertyValue(name).trim() : name;

export class HeatMap {
  /** @param {HTMLCanvasElement} canvas
   * @param {{codes: {most: number, swapped: number, unknown: number}, rate: (share: number) => [number, number, number],
   *   changed: () => void, pointed: (lines: string[]|null, x: number, y: number) => void, selected: (what: Selection|null) => void}} options */
  constructor(canvas, options) {
    this.canvas = canvas;
    this.pen = context(canvas);
    this.options = options;
    /** @type {Layer|null} */
    this.layer = null;
    /** @type {Tiles|null} */
    this.tiles = null;
    /** A part of the layer in finer resolution. @type {{layer: Layer, tiles: Tiles}|null} */
    this.detail = null;
    /** @type {Band[]} */
    this.bands = [];
    this.height = 1;
    this.end = 1;
    /** @type {View} */
    this.view = {t0: 0, t1: 1, v0: 0, v1: 1};
    /** @type {{x: number, y: number}|null} */
    this.pointer = null;
    /** @type {Selection|null} */
    this.selection = null;
    this.isDue = false;
    /** @type {HTMLCanvasElement|null} */
    this.cover = null;
    new ResizeObserver(() => this.refresh()).observe(canvas);
  }

  /** Shows another target. @param {Layer|null} layer @param {number} end */
  show(layer, end) {
    this.layer = layer;
    this.detail = null;
    this.end = end;
    this.tiles = layer && new Tiles(layer, this.options.codes, this.options.rate);
    this.bands = [];
    const total = layer ? layer.segments.reduce((sum, s) => sum + s.units, 0) : 0;
    let v = 0;
    for (const [segment, s] of (layer ? layer.segments : []).entries()) {
      if (s.gap_before_bytes) {
        this.bands.push({v, size: total * GAP_SHARE, segment: -1, gap: s.gap_before_bytes});
        v += total * GAP_SHARE;
      }
      const size = Math.max(s.units, total * LEAST_SHARE);
      this.bands.push({v, size, segment, gap: 0});
      v += size;
    }
    this.height = Math.max(1, v);
    this.selection = null;
    this.view = {...this.view, v0: 0, v1: this.height};
    this.refresh();
  }

  /** Adds a finer part of the same axis, which is shown where it covers the view. @param {Layer} layer */
  setDetail(layer) {
    if (!this.layer || !layer.nrColumns) return;
    this.detail = {layer, tiles: new Tiles(layer, this.options.codes, this.options.rate)};
    this.refresh();
  }

  /** Returns the layer with most detail of these seconds. @param {number} t0 @param {number} t1 */
  finest(t0, t1) {
    const {detail} = this, slack = (t1 - t0) * 1e-3;
    const isIn = detail && t0 >= detail.layer.start - slack && t1 <= detail.layer.stop + slack;
    return isIn ? detail : this.layer && this.tiles ? {layer: this.layer, tiles: this.tiles} : null;
  }

  /** The picture's place on the canvas. */
  plot() {
    const w = this.canvas.clientWidth, narrow = w < 640;
    const left = narrow ? 8 : 128, right = narrow ? 8 : 180;
    return {x: left, y: TOP, w: Math.max(40, w - left - right), h: Math.max(40, this.canvas.clientHeight - TOP - BOTTOM), narrow};
  }

  /** @param {number} t */
  toX(t) { const p = this.plot(), {t0, t1} = this.view; return p.x + (t - t0) / (t1 - t0) * p.w; }
  /** @param {number} v */
  toY(v) { const p = this.plot(), {v0, v1} = this.view; return p.y + p.h - (v - v0) / (v1 - v0) * p.h; }
  /** @param {number} x */
  fromX(x) { const p = this.plot(), {t0, t1} = this.view; return t0 + (x - p.x) / p.w * (t1 - t0); }
  /** @param {number} y */
  fromY(y) { const p = this.plot(), {v0, v1} = this.view; return v0 + (p.y + p.h - y) / p.h * (v1 - v0); }

  /** The height of a place. @param {number} place */
  heightOf(place) {
    if (!this.layer) return 0;
    for (const b of this.bands) {
      const s = this.layer.segments[b.segment];
      if (s && place <= s.place + s.units) return b.v + Math.max(0, place - s.place) / s.units * b.size;
    }
    return this.height;
  }

  /** The place at a height; in a gap, the nearest one. @param {number} v */
  placeAt(v) {
    let place = 0;
    for (const b of this.bands) {
      const s = this.layer?.segments[b.segment];
      if (!s) continue;
      if (v < b.v) return s.place;
      if (v < b.v + b.size) return s.place + Math.floor((v - b.v) / b.size * s.units);
      place = s.place + s.units;
    }
    return place;
  }

  refresh() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => { this.isDue = false; this.draw(); });
  }

  /** Keeps the view within the data. @param {View} view */
  setView(view) {
    const finest = this.finest(view.t0, view.t1)?.layer;
    const least = finest ? Math.min(this.end, finest.step * 4) : 0.001;
    const [t0, t1] = bound(view.t0, view.t1, this.end, least);
    const unit = Math.min(...this.bands.filter(b => b.segment >= 0).map(b => b.size / (this.layer?.segments[b.segment].units || 1)), this.height);
    const [v0, v1] = bound(view.v0, view.v1, this.height, Math.min(this.height, 8 * unit));
    this.view = {t0, t1, v0, v1};
    this.refresh();
    this.options.changed();
  }

  reset() { this.setView({t0: 0, t1: this.end, v0: 0, v1: this.height}); }

  /** Zooms about a point. @param {number} factor @param {"x"|"y"|"both"} axes @param {{x: number, y: number}} [at] */
  zoom(factor, axes, at) {
    const p = this.plot(), {x, y} = at ?? this.pointer ?? {x: p.x + p.w / 2, y: p.y + p.h / 2};
    const t = this.fromX(x), v = this.fromY(y), fx = axes === "y" ? 1 : factor, fy = axes === "x" ? 1 : factor, o = this.view;
    this.setView({t0: t - (t - o.t0) * fx, t1: t + (o.t1 - t) * fx, v0: v - (v - o.v0) * fy, v1: v + (o.v1 - v) * fy});
  }

  /** Moves by shares of the view. @param {number} x @param {number} y */
  move(x, y) {
    const o = this.view, dt = (o.t1 - o.t0) * x, dv = (o.v1 - o.v0) * y;
    this.setView({t0: o.t0 + dt, t1: o.t1 + dt, v0: o.v0 + dv, v1: o.v1 + dv});
  }

  /** Shows a range of places, over all of its time. @param {number} from @param {number} to */
  showPlaces(from, to) {
    const v0 = this.heightOf(from), v1 = this.heightOf(to), room = Math.max((v1 - v0) * 0.15, 1e-6);
    this.setView({...this.view, v0: v0 - room, v1: v1 + room});
  }

  /** @param {{x: number, y: number}|null} at */
  point(at) { this.pointer = at; this.refresh(); }

  /** Selects a part, between two points on the canvas. @param {{x: number, y: number}} a @param {{x: number, y: number}} b */
  select(a, b) {
    const [t0, t1] = [this.fromX(Math.min(a.x, b.x)), this.fromX(Math.max(a.x, b.x))];
    const from = this.placeAt(this.fromY(Math.max(a.y, b.y))), to = this.placeAt(this.fromY(Math.min(a.y, b.y))) + 1;
    this.setSelection({t0: Math.max(0, t0), t1: Math.min(this.end, t1), from, to});
  }

  /** @param {Selection|null} what */
  setSelection(what) {
    this.selection = what && what.t1 > what.t0 && what.to > what.from ? what : null;
    this.options.selected(this.selection);
    this.refresh();
  }

  draw() {
    const {canvas, pen} = this, scale = window.devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
    // Hidden.
    if (!w || !h) return;
    if (canvas.width !== Math.round(w * scale) || canvas.height !== Math.round(h * scale)) {
      canvas.width = Math.round(w * scale);
      canvas.height = Math.round(h * scale);
    }
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, w, h);
    const p = this.plot();
    if (!this.layer?.length) {
      pen.fillStyle = colour("--dim");
      pen.font = "14px system-ui,sans-serif";
      pen.fillText("No snapshot in this part of the record.", p.x + 12, p.y + 30);
      return;
    }
    pen.save();
    pen.beginPath();
    pen.rect(p.x, p.y, p.w, p.h);
    pen.clip();
    this.drawAbsent(p);
    this.drawCells(scale);
    this.drawSelection();
    pen.restore();
    pen.strokeStyle = colour("--line");
    pen.strokeRect(p.x - .5, p.y - .5, p.w + 1, p.h + 1);
    this.drawTimes(p);
    this.drawAddresses(p);
    this.drawMappings(p);
    this.drawPointer(p);
  }

  /** Draws a background where memory is mapped but not resident; nothing where nothing is mapped.
   * @param {{x: number, y: number, w: number, h: number}} p */
  drawAbsent(p) {
    const {layer, pen} = this;
    if (!layer) return;
    const seen = watched(layer);
    const left = Math.max(p.x, this.toX(layer.start + seen[0] * layer.step));
    const right = Math.min(p.x + p.w, this.toX(layer.start + seen[1] * layer.step));
    pen.fillStyle = colour("--absent");
    let drawn = Infinity;
    for (let i = 0; i < layer.mappings.length; i += 3) {
      const top = this.toY(this.heightOf(layer.mappings[i] + layer.mappings[i + 1])), bottom = Math.min(drawn, this.toY(this.heightOf(layer.mappings[i])));
      if (bottom < p.y || top > p.y + p.h || bottom - top < .5) continue;
      pen.fillRect(left, top, Math.max(0, right - left), bottom - top);
      drawn = top;
    }
  }

  /** @param {number} scale */
  drawCells(scale) {
    const {pen} = this, p = this.plot(), finest = this.finest(this.view.t0, this.view.t1);
    if (!finest) return;
    const {layer, tiles} = finest;
    pen.imageSmoothingEnabled = false;
    const began = performance.now();
    /** @type {{tile: import("./tiles.js").Tile, box: [number, number, number, number, number, number, number, number]}[]} */
    const drawn = [];
    const {t0, t1, v0, v1} = this.view, c0 = (t0 - layer.start) / layer.step, c1 = (t1 - layer.start) / layer.step;
    const x = Math.max(0, Math.floor(Math.log2((c1 - c0) / (p.w * scale))));
    for (const band of this.bands) {
      if (band.v + band.size < v0 || band.v > v1) continue;
      const top = this.toY(band.v + band.size), bottom = this.toY(band.v);
      const segment = layer.segments[band.segment];
      if (!segment) {
        this.drawGap(band, top, bottom);
        continue;
      }
      const y = Math.max(0, Math.floor(Math.log2(segment.units / band.size * (v1 - v0) / (p.h * scale))));
      const wide = SIZE * 2 ** x, high = SIZE * 2 ** y, levels = {x, y};
      const low = Math.max(0, (v0 - band.v) / band.size * segment.units), top1 = Math.min(segment.units, (v1 - band.v) / band.size * segment.units);
      for (let ty = Math.floor(low / high); ty * high < top1; ty++) {
        for (let tx = Math.max(0, Math.floor(c0 / wide)); tx * wide < Math.min(c1, layer.nrColumns); tx++) {
          const rest = {c1: Math.min((tx + 1) * wide, layer.nrColumns), u1: Math.min((ty + 1) * high, segment.units)};
          const left = this.toX(layer.start + tx * wide * layer.step), right = this.toX(layer.start + rest.c1 * layer.step);
          const lower = this.toY(band.v + ty * high / segment.units * band.size), upper = this.toY(band.v + rest.u1 / segment.units * band.size);
          let tile = tiles.get(band.segment, levels, tx, ty), from = {levels, tx, ty};
          if (!tile && performance.now() - began < MAKING) tile = tiles.add(band.segment, levels, tx, ty);
          if (!tile) {
            // The coarse picture, until there is time for tiles.
            const whole = tiles.whole[band.segment];
            [tile, from] = [whole.tile, {levels: whole.levels, tx: 0, ty: 0}];
            this.refresh();
          }
          const cw = 2 ** from.levels.x, ch = 2 ** from.levels.y;
          const sx = tx * wide / cw - from.tx * SIZE, sw = (rest.c1 - tx * wide) / cw;
          const sh = (rest.u1 - ty * high) / ch, sy = SIZE - (ty * high / ch - from.ty * SIZE) - sh;
          const dx = snap(left, scale), dy = snap(upper, scale);
          drawn.push({tile, box: [sx, sy, sw, sh, dx, dy, snap(right, scale) - dx, snap(lower, scale) - dy]});
        }
      }
    }
    for (const {tile, box} of drawn) pen.drawImage(tile.colours, ...box);
    this.drawMasked(drawn, "unknown", scale);
    this.drawMasked(drawn, "swapped", scale);
  }

  /** Fills a mask with a pattern whose size does not depend on the zoom.
   * @param {{tile: import("./tiles.js").Tile, box: [number, number, number, number, number, number, number, number]}[]} drawn
   * @param {"unknown"|"swapped"} which @param {number} scale */
  drawMasked(drawn, which, scale) {
    const masked = drawn.filter(({tile}) => tile[which]);
    if (!masked.length) return;
    const cover = this.cover ??= document.createElement("canvas");
    cover.width = this.canvas.width;
    cover.height = this.canvas.height;
    const pen = context(cover);
    pen.imageSmoothingEnabled = false;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    for (const {tile, box} of masked) if (tile[which]) pen.drawImage(/** @type {HTMLCanvasElement} */ (tile[which]), ...box);
    pen.globalCompositeOperation = "source-in";
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.fillStyle = pattern(pen, which);
    pen.fillRect(0, 0, cover.width, cover.height);
    this.pen.setTransform(1, 0, 0, 1, 0, 0);
    this.pen.drawImage(cover, 0, 0);
    this.pen.setTransform(scale, 0, 0, scale, 0, 0);
  }

  /** @param {Band} band @param {number} top @param {number} bottom */
  drawGap(band, top, bottom) {
    const {pen} = this, p = this.plot();
    pen.strokeStyle = colour("--dim");
    pen.setLineDash([4, 4]);
    pen.beginPath();
    for (const y of [top, bottom]) { pen.moveTo(p.x, y); pen.lineTo(p.x + p.w, y); }
    pen.stroke();
    pen.setLineDash([]);
    if (bottom - top < 12) return;
    pen.font = "12px system-ui,sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillStyle = colour("--dim");
    pen.fillText(`${bytes(band.gap)} not mapped`, p.x + p.w / 2, (top + bottom) / 2);
  }

  drawSelection() {
    const {pen, selection} = this;
    if (!selection) return;
    const [x0, x1] = [this.toX(selection.t0), this.toX(selection.t1)];
    const [y0, y1] = [this.toY(this.heightOf(selection.to)), this.toY(this.heightOf(selection.from))];
    pen.strokeStyle = "#fff";
    pen.lineWidth = 3;
    pen.strokeRect(x0, y0, x1 - x0, y1 - y0);
    pen.strokeStyle = "#0072b2";
    pen.lineWidth = 1.5;
    pen.strokeRect(x0, y0, x1 - x0, y1 - y0);
    pen.lineWidth = 1;
  }

  /** @param {{x: number, y: number, w: number, h: number}} p */
  drawTimes(p) {
    const {pen} = this;
    pen.font = "12px system-ui,sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (const t of timeTicks(this.view.t0, this.view.t1, p.w / 110)) {
      const x = this.toX(t);
      pen.strokeStyle = colour("--line");
      pen.beginPath();
      pen.moveTo(x, p.y + p.h);
      pen.lineTo(x, p.y + p.h + 5);
      pen.stroke();
      pen.fillStyle = colour("--dim");
      pen.fillText(duration(t), x, p.y + p.h + 8);
    }
  }

  /** @param {{x: number, y: number, w: number, h: number, narrow: boolean}} p */
  drawAddresses(p) {
    const {layer, pen} = this;
    if (!layer || p.narrow) return;
    pen.font = "11px ui-monospace,monospace";
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    let free = Infinity;
    /** @param {number} v @param {bigint} address */
    const mark = (v, address) => {
      const y = this.toY(v);
      if (y < p.y - 1 || y > p.y + p.h + 1 || y > free) return;
      free = y - 18;
      pen.strokeStyle = colour("--line");
      pen.beginPath();
      pen.moveTo(p.x - 5, y);
      pen.lineTo(p.x, y);
      pen.stroke();
      pen.fillStyle = colour("--dim");
      pen.fillText(hex(address), p.x - 9, y);
    };
    for (const b of this.bands) {
      const s = layer.segments[b.segment];
      if (!s) continue;
      const room = b.size / (this.view.v1 - this.view.v0) * p.h, step = 2 ** Math.ceil(Math.log2(Math.max(1, s.units / room * 46)));
      const first = Math.max(0, Math.floor((this.view.v0 - b.v) / b.size * s.units / step));
      const last = Math.min(s.units, (this.view.v1 - b.v) / b.size * s.units);
      for (let at = first * step; at < last; at += step) mark(b.v + at / s.units * b.size, layer.address(s.place + at));
      mark(b.v + b.size, layer.end(s.place + s.units));
    }
  }

  /** Mappings as lanes beside the picture: a bracket, its name and size.
   * @param {{x: number, y: number, w: number, h: number, narrow: boolean}} p */
  drawMappings(p) {
    const {layer, pen} = this;
    if (!layer || p.narrow) return;
    pen.font = "11px ui-monospace,monospace";
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    let free = Infinity;
    for (let i = 0; i < layer.mappings.length; i += 3) {
      const [place, units, name] = layer.mappings.subarray(i, i + 3);
      const bottom = Math.min(this.toY(this.heightOf(place)), p.y + p.h), top = Math.max(this.toY(this.heightOf(place + units)), p.y);
      if (bottom - top < 3) continue;
      pen.strokeStyle = colour("--dim");
      pen.beginPath();
      pen.moveTo(p.x + p.w + 4, top + 1);
      pen.lineTo(p.x + p.w + 8, top + 1);
      pen.lineTo(p.x + p.w + 8, bottom - 1);
      pen.lineTo(p.x + p.w + 4, bottom - 1);
      pen.stroke();
      const y = (top + bottom) / 2;
      if (y + 12 > free) continue;
      const size = bytes(units * layer.unit), twoLines = bottom - top > 30;
      free = twoLines ? y - 8 : y;
      pen.fillStyle = colour("--fg");
      pen.fillText(fit(pen, layer.names[name], 160), p.x + p.w + 13, twoLines ? y - 7 : y);
      if (!twoLines) continue;
      pen.fillStyle = colour("--dim");
      pen.fillText(size, p.x + p.w + 13, y + 8);
    }
  }

  /** @param {{x: number, y: number, w: number, h: number}} p */
  drawPointer(p) {
    const at = this.pointer, {pen} = this;
    const inside = at && at.x >= p.x && at.x < p.x + p.w && at.y >= p.y && at.y < p.y + p.h;
    if (!at || !inside) {
      this.options.pointed(null, 0, 0);
      return;
    }
    pen.strokeStyle = colour("--fg");
    pen.globalAlpha = .45;
    pen.beginPath();
    pen.moveTo(at.x, p.y);
    pen.lineTo(at.x, p.y + p.h);
    pen.moveTo(p.x, at.y);
    pen.lineTo(p.x + p.w, at.y);
    pen.stroke();
    pen.globalAlpha = 1;
    this.options.pointed(this.describe(at), at.x, at.y);
  }

  /** Describes a point in words. @param {{x: number, y: number}} at @returns {string[]|null} */
  describe(at) {
    const layer = this.finest(this.view.t0, this.view.t1)?.layer;
    if (!layer) return null;
    const t = this.fromX(at.x), v = this.fromY(at.y), column = Math.floor((t - layer.start) / layer.step);
    const when = `${duration(layer.start + column * layer.step)} to ${duration(layer.start + (column + 1) * layer.step)}`;
    const band = this.bands.find(b => v >= b.v && v < b.v + b.size);
    if (!band) return null;
    if (band.segment < 0) return [`${bytes(band.gap)} not mapped`, "cut out of the picture"];
    const place = this.placeAt(v), mapping = layer.mapping(place), piece = layer.piece(column, place);
    const where = mapping ? [`${mapping.name}, ${bytes(mapping.units * layer.unit)}`] : [];
    if (piece < 0) {
      const what = !layer.isWatched(column) ? "not watched" : mapping ? "no memory here" : "not mapped";
      return [what, when, hex(layer.address(place)), ...where];
    }
    const {codes} = this.options, code = layer.rates[piece], from = layer.places[piece], to = from + layer.units[piece];
    const age = `, for ${duration(layer.age(piece))}`;
    const what = code === codes.unknown ? "unknown" : code === codes.swapped ? "swapped out" : `accessed ${percent(code / codes.most)}${age}`;
    return [what, when, `${hex(layer.address(from))} – ${hex(layer.end(to))} (${bytes(layer.units[piece] * layer.unit)})`, ...where];
  }
}

/** Keeps a range of at least `least` within 0 to `most`. @param {number} a @param {number} b @param {number} most @param {number} least */
function bound(a, b, most, least) {
  const size = Math.min(most, Math.max(least, b - a));
  if (b - a !== size) a = (a + b) / 2 - size / 2;
  a = Math.min(Math.max(0, a), most - size);
  return [a, a + size];
}

/** Rounds to whole pixels, so that neighbours touch. @param {number} at @param {number} scale */
const snap = (at, scale) => Math.round(at * scale) / scale;

/** First and last column in which a layer's target was watched. @param {Layer} layer */
function watched(layer) {
  let from = 0, to = layer.nrColumns;
  while (from < to && !layer.isWatched(from)) from++;
  while (to > from && !layer.isWatched(to - 1)) to--;
  return [from, to];
}

/** @param {CanvasRenderingContext2D} pen @param {string} name @param {number} room */
function fit(pen, name, room) {
  if (name.length > 400) name = name.slice(0, 400);
  if (pen.measureText(name).width <= room) return name;
  while (name.length > 4 && pen.measureText("…" + name).width > room) name = name.slice(Math.ceil(name.length / 12));
  return "…" + name;
}

/** Pattern of lines for unknown memory, and of dots for swapped memory. @param {CanvasRenderingContext2D} pen @param {"unknown"|"swapped"} which */
function pattern(pen, which) {
  const made = document.createElement("canvas"), g = context(made);
  made.width = made.height = 8;
  g.fillStyle = colour(`--${which}`);
  g.fillRect(0, 0, 8, 8);
  g.strokeStyle = g.fillStyle = colour(`--${which}-mark`);
  if (which === "swapped") {
    g.fillRect(1, 1, 2, 2);
    g.fillRect(5, 5, 2, 2);
  } else {
    g.lineWidth = 2;
    g.beginPath();
    for (const d of [-8, 0, 8]) { g.moveTo(d - 1, 9); g.lineTo(d + 9, -1); }
    g.stroke();
  }
  return /** @type {CanvasPattern} */ (pen.createPattern(made, "repeat"));
}
