// Parts of a heat map that a server tells more finely than the page has them: asked for when one looks closer.

import {Container, Layer} from "isotherm/data.js";

/** Gives a part of a record's heat map: of a layer, by number, from one second to another.
 * @typedef {(record: number, layer: number, from: number, to: number) => Promise<ArrayBuffer>} Ask */

/** How long a view is to be still, in milliseconds. */
const STILL = 180;
/** Of what a layer tells, a view that is shorter than this share of it may gain by another. */
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
      // Another may be shown by now.
      if (heat.layer === base && container.json.of.length) heat.setDetail(new Layer(container, container.json.of[0], container.json));
    } catch (error) {
      // The page goes on with what it has.
      console.warn(`no detail: ${error}`);
    }
    this.isAsking = false;
    const {view} = heat;
    if (heat.layer === base && (view.t0 !== t0 || view.t1 !== t1)) this.look(record, number);
  }
}
