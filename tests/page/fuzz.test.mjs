// The browser's simulated machine must refuse invalid traces and invalid questions, and then answer the
// next. `FUZZ_S` says for how many seconds, `CORPUS` names a folder of more inputs, e.g. fuzz/corpus/record_reader.

import assert from "node:assert/strict";
import {execFileSync} from "node:child_process";
import {existsSync, mkdtempSync, readFileSync, readdirSync, rmSync} from "node:fs";
import {tmpdir} from "node:os";
import {join} from "node:path";
import {after, before, test} from "node:test";
import {gunzipSync} from "node:zlib";

const isotherm = process.env.ISOTHERM ?? "isotherm", SECONDS = Number(process.env.FUZZ_S ?? 6);
const corpus = process.env.CORPUS ?? new URL("../../fuzz/corpus/record_reader", import.meta.url).pathname;

let folder = "";
/** @type {WebAssembly.Module} */
let module;
/** @type {Uint8Array} */
let trace;
/** @type {Uint8Array[]} */
let seeds = [];

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "isotherm-fuzz-"));
  const [file, page] = ["trace.isotherm", "page.html"].map(name => join(folder, name));
  execFileSync(process.env.TRACE ?? "trace", [file]);
  execFileSync(isotherm, ["report", "heatmap", file, "-o", page], {stdio: "pipe"});
  const inside = readFileSync(page, "utf8").match(/id="what-if-wasm"[^>]*>([^<]*)/);
  module = await WebAssembly.compile(gunzipSync(Buffer.from(inside[1].trim(), "base64")));
  trace = readFileSync(file);
  seeds = [trace, ...existsSync(corpus) ? readdirSync(corpus).slice(0, 2000).map(name => readFileSync(join(corpus, name))) : []];
});

after(() => rmSync(folder, {recursive: true, force: true}));

/** A machine of its own. */
function machine() {
  const {exports} = new WebAssembly.Instance(module, {page: {reported() {}}});
  const api = /** @type {any} */ (exports);
  /** @param {Uint8Array} bytes @param {() => number} call */
  const called = (bytes, call) => {
    const at = api.isotherm_input(bytes.length);
    new Uint8Array(api.memory.buffer, at, bytes.length).set(bytes);
    const isGood = call();
    const output = new Uint8Array(api.memory.buffer, api.isotherm_output(), api.isotherm_output_bytes());
    const text = new TextDecoder("utf8", {fatal: true}).decode(output.slice());
    assert.ok(isGood === 1 || isGood === 0 && text.length > 0);
    if (isGood) JSON.parse(text);
    return isGood;
  };
  /** @param {object|string} question */
  const encoded = question => new TextEncoder().encode(typeof question === "string" ? question : JSON.stringify(question));
  return {
    open: (/** @type {Uint8Array} */ bytes, oneIn = 1) => called(bytes, () => api.isotherm_open(oneIn)),
    ask: (/** @type {object|string} */ question) => called(encoded(question), () => api.isotherm_predict()),
    configure: (/** @type {object|string} */ question) => called(encoded(question), () => api.isotherm_configuration()),
  };
}

/** Numbers that are the same in each run (xorshift). @param {number} seed */
function random(seed) {
  let x = seed;
  return (/** @type {number} */ below) => {
    x ^= x << 13; x ^= x >>> 17; x ^= x << 5;
    return (x >>> 0) % below;
  };
}

/** @param {Uint8Array} of @param {(below: number) => number} any */
function mutated(of, any) {
  const bytes = new Uint8Array(of);
  for (let n = any(6); n >= 0 && bytes.length; n--) {
    const at = any(bytes.length);
    switch (any(4)) {
      case 0: bytes[at] ^= 1 << any(8); break;
      case 1: bytes[at] = [0, 1, 0x7f, 0x80, 0xff][any(5)]; break;
      case 2: return bytes.slice(0, at);
      default: bytes.copyWithin(at, any(bytes.length), Math.min(bytes.length, at + 1 + any(64)));
    }
  }
  return bytes;
}

test("bytes that are no trace are refused, and the next trace is read", () => {
  const any = random(7), end = performance.now() + SECONDS * 1000;
  let within = machine(), inputs = 0, good = 0;
  for (const seed of seeds) within.open(seed);
  for (let n = 0; performance.now() < end; n++) {
    inputs++;
    good += within.open(mutated(seeds[any(seeds.length)], any), 64 + any(64));
    if (n % 200 === 199) {
      assert.equal(within.open(trace, 8), 1);
      within = machine();
    }
  }
  assert.equal(within.open(trace, 8), 1);
  console.log(`${inputs} inputs, ${good} of them readable, ${seeds.length} seeds`);
});

test("questions that are none are refused, and the next is answered", () => {
  const within = machine(), good = {schemes: ["4K max 0% 0% 5s max pageout"], max_slowdown: null};
  assert.equal(within.ask(good), 0, "no trace is open");
  assert.equal(within.open(trace, 8), 1);
  for (const bad of ["", "{", "[]", "null", {schemes: 7}, {schemes: ["x"]}, {schemes: ["4K max 0% 0% 5s max pageout".repeat(9999)]}, {schemes: ["4K max 0% 0% 5s max fly"]},
    {schemes: ["4K max 0% 0% 5s max pageout"], max_slowdown: -1}, {schemes: ["4K max 0% 0% 5s max pageout"], max_slowdown: 1e308},
    {schemes: ["99999999999999999999E max 0% 0% 5s max pageout"]}, {schemes: ["max min 0% 0% 5s max pageout"]}]) {
    within.ask(bad);
    within.configure(bad);
  }
  assert.equal(within.ask({schemes: ["x"]}), 0);
  assert.equal(within.ask(good), 1);
  assert.equal(within.configure(good), 1);
});
