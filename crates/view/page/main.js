// Starts the page with its embedded data, or with the server's.

import {App} from "isotherm/app.js";
import {bytesOf, gunzip} from "isotherm/data.js";

const inside = /** @type {HTMLElement} */ (document.getElementById("data"));
const {from, events, details} = inside.dataset;

/** @returns {Promise<ArrayBuffer>} */
async function read() {
  if (!from) return gunzip(bytesOf(inside.textContent?.trim() ?? ""));
  return fetched(from);
}

/** Fetches an address from the server. @param {string} address @returns {Promise<ArrayBuffer>} */
async function fetched(address) {
  const answer = await fetch(address, {cache: "no-store"});
  if (!answer.ok) throw new Error(`the server says ${answer.status}: ${await answer.text()}`);
  return answer.arrayBuffer();
}

/** @param {string} text */
function warn(text) {
  const told = document.querySelector("[role=alert]") ?? document.createElement("p");
  told.setAttribute("role", "alert");
  told.textContent = text;
  document.getElementById("main")?.prepend(told);
}

/** Shows new data: one document at a time, and only the newest that waits. @param {App} app @param {string} address */
function follow(app, address) {
  const source = new EventSource(address);
  let isReading = false, isStale = false;
  const next = async () => {
    isStale = isReading;
    if (isReading) return;
    isReading = true;
    try {
      app.update(await read());
    } catch (error) {
      warn(String(error));
    }
    isReading = false;
    if (isStale) next();
  };
  source.addEventListener("new", next);
  source.addEventListener("end", () => { source.close(); app.status("ended"); next(); });
  source.addEventListener("open", () => app.status("live"));
  source.addEventListener("error", () => app.status(source.readyState === EventSource.CLOSED ? "the server has gone" : "waiting for the server"));
}

/** Unpacks the data in an element of the page. @param {string} id */
const packed = id => gunzip(bytesOf(document.getElementById(id)?.textContent?.trim() ?? ""));

/** Returns the simulated machine's WebAssembly, its worker and a record's trace. @param {number} record */
async function trace(record) {
  const worker = document.getElementById("what-if-worker")?.textContent ?? "";
  if (!from) return {wasm: await packed("what-if-wasm"), record: (await bytesOf(document.getElementById("trace")?.textContent?.trim() ?? "")).buffer, worker};
  const [wasm, bytes] = await Promise.all(["what-if.wasm", `trace/${record}`].map(fetched));
  return {wasm, record: bytes, worker};
}

/** A part of a heat map. @param {number} record @param {number} layer @param {number} start @param {number} end */
const detail = (record, layer, start, end) => fetched(`${details}/${record}/${layer}/${start}/${end}`);

try {
  const app = new App(await read(), document.getElementById("what-if-worker") ? trace : null, details ? detail : null);
  Object.assign(window, {isotherm: app});
  if (events) follow(app, events);
  document.documentElement.dataset.ready = "yes";
} catch (error) {
  warn(`This page cannot be shown: ${error instanceof Error ? error.message : error}`);
}
