// The page's data: one container of JSON and of arrays that it refers to (crates/view/src/container.rs).

/** A reference to an array of the container. @typedef {{at: number, count: number, type: "u8"|"u16"|"u32"|"f64"}} Ref */
/** @typedef {{place: number, units: number, gap_before_bytes: number}} SegmentJson */
/** @typedef {{label: string, unit_bytes: number, runs: Ref, run_addresses: string[], segments: SegmentJson[], names: string[],
 *   mappings: Ref, columns: Ref, gaps: Ref, units: Ref, rates: Ref, ages: Ref}} LayerJson */
/** Heat maps of a record, or of a part of it. @typedef {{start_s: number, column_s: number, columns: number, is_exact: boolean, left_out: number,
 *   of: LayerJson[]}} LayersJson */
/** Something over time. @typedef {{times_s: Ref, means: Ref}} SeriesJson */
/** @typedef {SeriesJson & {name: string}} QuantityJson */
/** @typedef {{label: string, quantities: QuantityJson[]}} CourseJson */
/** @typedef {{label: string, resident: number|null, swapped: number|null, working_set: number|null, idle: [number, number|null][],
 *   unknown: number}} TargetJson */
/** @typedef {{label: string, action: string, dry_run: boolean, nr_tried: number, tried: number, applied: number,
 *   refused: [string, number][], took_s: number, from_s: number, to_s: number, course: SeriesJson, moved: [number, number, number][]}} SchemeJson */
/** @typedef {{label: string, stops: number, closed_s: number, limit_ratio_max: number|null, slowdown_mean: number|null,
 *   slowdown_max: number|null, refaults_mean: number|null, refaults_max: number|null, limit_ratio: SeriesJson, refaults: SeriesJson, allowed: SeriesJson,
 *   stopped: [number, number][]}} GuardJson */
/** Accessed, idle by age, unknown. @typedef {number[]} Ages */
/** @typedef {{class: string, bytes: number, ages: Ages|null}} ClassJson */
/** @typedef {{time_s: number, total: number, used: number, known_use: number, known_age: number, age_bounds_s: number[], classes: ClassJson[],
 *   nodes: {node: number, total: number, used: number, classes: ClassJson[]}[], processes: {label: string, group: string|null, ages: Ages}[],
 *   several: Ages, cached: {group: string|null, ages: Ages}[], text: string}} MachineJson */
/** @typedef {{nodes: {node: number, total: number, used: SeriesJson, mapped: SeriesJson, idle: SeriesJson}[],
 *   ways: {from: number, to: number, bytes: number, course: SeriesJson}[], counters: {name: string, pages: number, course: SeriesJson}[]}} TiersJson */
/** @typedef {{thresholds_s: Ref, saved: Ref, saved_share: Ref, refaults_per_s: Ref, slowdown: Ref}} ReclaimJson */
/** @typedef {{max_waste: number|null, huge_mean_bytes: number, waste_mean_bytes: number, waste_share: number, waste_of_always: number,
 *   coverage: number}} HugePoint */
/** @typedef {{resident_mean: number, recorded_huge_mean: number, touched_per_scan: number, idle_s: number, named: [string, HugePoint][],
 *   bounds: HugePoint[]}} HugeJson */
/** @typedef {{scan_interval_s: number, resident_mean: number, unknown_mean: number, refault_cost_s: number, idle: ReclaimJson,
 *   backoff: ReclaimJson, huge: HugeJson|null, needed: string|null}} CurvesJson */
/** One answer of the first-touch profile; arrays have an element per box. @typedef {{measure: "idle"|"resident"|"accessed"|"refaulted"|"waste", at_least_s: number, total: number, blamed: number,
 *   likely: number, before_sampling: number, not_sampled: number, nr_others: number, others: number, boxes: Ref, depths: Ref, lefts: Ref, bytes: Ref,
 *   likely_bytes: Ref, list: {name: string, bytes: number, likely: number, inclusive: number}[], nr_unlisted: number, unlisted: number,
 *   huge: {bytes: number, read: number}|null}} AnswerJson */
/** Functions are a name and a library's name. @typedef {{time_s: number, nr_samples: number, nr_lost: number, names: string[],
 *   functions: [number, number|null][], answers: AnswerJson[]}} BlameJson */
/** @typedef {{subject: string, duration_s: number, layers: LayersJson, total: CourseJson, courses: CourseJson[], targets: TargetJson[],
 *   ended_targets: number, mappings: {target: string, name: string, resident: number|null, idle: number}[],
 *   schemes: SchemeJson[], guards: GuardJson[], processes: {label: string, tried: number, applied: number, refused: [string, number][]}[],
 *   machine: MachineJson|null, tiers: TiersJson|null, curves: CurvesJson|null, blame: BlameJson|null, pictures: {title: string, svg: string, text: string}[]}} RecordJson */
/** @typedef {{version: number, codes: {most: number, swapped: number, unknown: number}, ramp: [number, number, number][],
 *   records: RecordJson[]}} DocumentJson */

const TYPES = {u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f64: Float64Array};

/** An opened container of a document, or of other JSON. @template [T=DocumentJson] */
export class Container {
  /** @param {ArrayBuffer} buffer */
  constructor(buffer) {
    const length = new DataView(buffer).getUint32(0, true);
    /** @type {T} */
    this.json = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
    this.buffer = buffer;
    this.start = Math.ceil((4 + length) / 8) * 8;
  }

  /** An array that the JSON refers to. @param {Ref} ref @returns {Uint8Array|Uint16Array|Uint32Array|Float64Array} */
  array(ref) {
    return new TYPES[ref.type](this.buffer, this.start + ref.at, ref.count);
  }
}

/** Gunzips. @param {Uint8Array<ArrayBuffer>} packed @returns {Promise<ArrayBuffer>} */
export async function gunzip(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

/** Base64 to bytes. @param {string} text */
export function bytesOf(text) {
  const raw = atob(text), found = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) found[i] = raw.charCodeAt(i);
  return found;
}

/** The first place of a sorted array, or of a part of it, whose value is above `value`. @param {Uint32Array} array
 * @param {number} value @param {number} [first] @param {number} [last] */
export function above(array, value, first = 0, last = array.length) {
  let from = first, to = last;
  while (from < to) {
    const middle = (from + to) >> 1;
    if (array[middle] <= value) from = middle + 1; else to = middle;
  }
  return from;
}

/** One target's pieces: the access rate of each range of the address axis, by column. */
export class Layer {
  /** @param {Container<any>} container @param {LayerJson} json @param {LayersJson} layers */
  constructor(container, json, layers) {
    this.label = json.label;
    this.unit = json.unit_bytes;
    this.segments = json.segments;
    this.names = json.names;
    this.start = layers.start_s;
    this.step = layers.column_s;
    /** A shorter part of the record would have no more detail. */
    this.isExact = layers.is_exact;
    this.runs = /** @type {Uint32Array} */ (container.array(json.runs));
    this.addresses = json.run_addresses.map(BigInt);
    this.columns = /** @type {Uint32Array} */ (container.array(json.columns));
    this.units = /** @type {Uint32Array} */ (container.array(json.units));
    this.rates = /** @type {Uint16Array} */ (container.array(json.rates));
    this.ages = /** @type {Uint16Array} */ (container.array(json.ages));
    // Places of each column's pieces, from the lengths of pieces and gaps.
    const gaps = container.array(json.gaps);
    this.places = new Uint32Array(gaps.length);
    for (let column = 0; column + 1 < this.columns.length; column++) {
      let place = 0;
      for (let at = this.columns[column]; at < this.columns[column + 1]; at++) {
        this.places[at] = place += gaps[at];
        place += this.units[at];
      }
    }
    // Triples: place, units, name.
    this.mappings = /** @type {Uint32Array} */ (container.array(json.mappings));
    const last = this.segments[this.segments.length - 1];
    this.length = last ? last.place + last.units : 0;
  }

  get nrColumns() { return this.columns.length - 1; }

  /** Its end, in seconds. */
  get stop() { return this.start + this.nrColumns * this.step; }

  /** The address at a place of the axis. @param {number} place @returns {bigint} */
  address(place) {
    const run = Math.max(0, above(this.runs, place) - 1);
    return this.addresses[run] + BigInt(place - this.runs[run]) * BigInt(this.unit);
  }

  /** The end address of the unit before a place, also if a gap follows it. @param {number} place @returns {bigint} */
  end(place) {
    return place > 0 ? this.address(place - 1) + BigInt(this.unit) : this.address(0);
  }

  /** The mapping at a place, or null. @param {number} place @returns {{place: number, units: number, name: string}|null} */
  mapping(place) {
    let from = 0, to = this.mappings.length / 3;
    while (from < to) {
      const middle = (from + to) >> 1;
      if (this.mappings[middle * 3] <= place) from = middle + 1; else to = middle;
    }
    if (!from) return null;
    const [start, units, name] = this.mappings.subarray((from - 1) * 3, from * 3);
    return place < start + units ? {place: start, units, name: this.names[name]} : null;
  }

  /** The piece at a place in a column; -1 if there is none. @param {number} column @param {number} place */
  piece(column, place) {
    if (column < 0 || column >= this.nrColumns) return -1;
    const at = above(this.places, place, this.columns[column], this.columns[column + 1]) - 1;
    return at >= this.columns[column] && place < this.places[at] + this.units[at] ? at : -1;
  }

  /** The age of a piece: seconds since its rate changed. @param {number} at */
  age(at) { return (2 ** (this.ages[at] / 1000) - 1) / 100; }

  /** Returns whether a column has data. @param {number} column */
  isWatched(column) {
    return column >= 0 && column < this.nrColumns && this.columns[column + 1] > this.columns[column];
  }
}
