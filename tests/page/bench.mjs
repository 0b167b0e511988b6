// Times the page's opening and panning in Debian's Chromium, without a screen or graphics processor:
// `node bench.mjs RECORD [REPEATS] [--json]`, after `tests/page/run.sh` has fetched the packages.

import {spawn} from "node:child_process";
import {launched} from "./browser.mjs";

const args = process.argv.slice(2).filter(arg => arg !== "--json"), [record, repeats = "3"] = args;
const isotherm = process.env.ISOTHERM ?? "isotherm";

/** Serves the record; gives the address once it is printed, and how long that took. */
async function serve() {
  const began = performance.now(), child = spawn(isotherm, ["web", record, "--no-browser"], {stdio: ["ignore", "pipe", "inherit"]});
  const address = await new Promise((resolve, reject) => {
    child.stdout.once("data", data => resolve(String(data).trim()));
    child.once("exit", code => reject(new Error(`isotherm web ended with ${code}`)));
  });
  return {child, address, read_s: (performance.now() - began) / 1000};
}

/** Pans and zooms for so long, a step a frame; gives the frames' times in ms by the browser's own trace of what it has drawn.
 * @param {import("playwright-core").Page} page @param {"pan"|"zoom"} how */
async function move(page, how) {
  return page.evaluate(async how => {
    const {heat} = window.isotherm, frames = [], end = performance.now() + 3000;
    heat.reset();
    heat.zoom(.2, "both", {x: 600, y: 300});
    for (let last = performance.now(), n = 0; last < end; n++) {
      if (how === "pan") heat.move(n % 120 < 60 ? .02 : -.02, n % 90 < 45 ? .02 : -.02);
      else heat.zoom(n % 100 < 50 ? .95 : 1 / .95, "both", {x: 500, y: 300});
      await new Promise(requestAnimationFrame);
      const now = performance.now();
      frames.push(now - last);
      last = now;
    }
    return frames.slice(5);
  }, how);
}

/** @param {number[]} frames */
function told(frames) {
  const sorted = [...frames].sort((a, b) => a - b), sum = frames.reduce((a, b) => a + b, 0);
  return {frames_per_s: frames.length / sum * 1000, p95_ms: sorted[Math.floor(sorted.length * .95)], max_ms: sorted[sorted.length - 1]};
}

const browser = await launched();
const runs = [];
for (let run = 0; run < Number(repeats); run++) {
  const {child, address, read_s} = await serve();
  const context = await browser.newContext({viewport: {width: 1400, height: 900}}), page = await context.newPage();
  const began = performance.now();
  await page.goto(address);
  await page.waitForSelector("html[data-ready]", {timeout: 60_000});
  await page.evaluate(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))));
  const open_s = (performance.now() - began) / 1000;
  const pieces = await page.evaluate(() => window.isotherm.heat.layer.rates.length);
  const pan = told(await move(page, "pan")), zoom = told(await move(page, "zoom"));
  const detail_s = await page.evaluate(async () => {
    const {heat} = window.isotherm, began = performance.now();
    if (heat.layer.isExact) return null;
    // A hundredth of it, in a part that was not drawn before.
    heat.reset();
    heat.setView({...heat.view, t0: heat.end * .7, t1: heat.end * .71});
    while (heat.finest(heat.view.t0, heat.view.t1)?.layer === heat.layer && performance.now() - began < 60_000) await new Promise(requestAnimationFrame);
    return (performance.now() - began) / 1000;
  });
  const heap_mib = await page.evaluate(() => performance.memory?.usedJSHeapSize / 2 ** 20);
  runs.push({read_s, open_s, pieces, pan, zoom, detail_s, heap_mib});
  await context.close();
  child.kill();
}
await browser.close();
if (process.argv.includes("--json")) console.log(JSON.stringify(runs));
else {
  const figures = runs.map(({pan, zoom, ...run}) => ({...run, pan_frames_per_s: pan.frames_per_s, pan_p95_ms: pan.p95_ms, zoom_frames_per_s: zoom.frames_per_s, zoom_p95_ms: zoom.p95_ms}));
  for (const name of Object.keys(figures[0])) {
    const sorted = figures.map(run => Number(run[name])).sort((a, b) => a - b), [low, median, high] = [0, sorted.length >> 1, sorted.length - 1].map(at => sorted[at].toFixed(2));
    console.log(`${name.padEnd(18)} ${median} [${low}..${high}]`);
  }
}
