// Requests parts of a heat map in finer resolution from the server, when the user zooms in.

import {Container, Layer} from "isotherm/data.js";

/** Returns a part of a record's heat map: a layer, by number, between two times.
 * @typedef {(record: number, layer: number, from: number, to: number) => Promise<ArrayBuffer>} Ask */

/** Milliseconds without a change of view before a request. */
const STILL = 180;
/** A view that is shorter than this share of its layer may need a finer one. */
const LESS = 0.5;

export class Details {
  /** @param {import("./heat.js").HeatMap} heat @param {Ask} ask */
  constructor(heat, ask) {
    this.heat = heat;
    this.ask = ask;
    this.timer = 0;
    this.isAsking = false;
  }

  /** The view has changed. @param {number} record @param {number} layer */
  look(record, layer) {
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.want(record, layer), STILL);
  }

  /** @param {number} record @param {number} number */
  async want(record, number) {
    const {heat} = this, {t0, t1} = heat.view, base = heat.layer, finest = heat.finest(t0, t1)?.layer, span = t1 - t0;
    if (!base || !finest || finest.isExact || span > LESS * (finest.stop - finest.start) || this.isAsking) return;
    this.isAsking = true;
    try {
      const buffer = await this.ask(record, number, Math.max(0, t0 - span / 4), t1 + span / 4);
      /** @type {Container<import("./data.js").LayersJson>} */
      const container = new Container(buffer);
      // The user may have opened another record meanwhile.
      if (heat.layer === base && container.json.of.length) heat.setDetail(new Layer(container, container.json.of[0], container.json));
    } catch (error) {
      // The page keeps its coarse data.
      console.warn(`no detail: ${error}`);
    }
    this.isAsking = false;
    const {view} = heat;
    if (heat.layer === base && (view.t0 !== t0 || view.t1 !== t1)) this.look(record, number);
  }
}
