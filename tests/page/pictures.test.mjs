// The book's pictures of the page (docs/images), of a simulated machine and a drawn trace, which are the same everywhere. Each is taken
// again and compared: a page that has changed needs new ones. `UPDATE_PICTURES=1 tests/page/run.sh --test-name-pattern=book` takes them.

import assert from "node:assert/strict";
import {execFileSync} from "node:child_process";
import {mkdtempSync, readFileSync, rmSync, statSync, writeFileSync} from "node:fs";
import {tmpdir} from "node:os";
import {join} from "node:path";
import {after, before, test} from "node:test";
import {fileURLToPath, pathToFileURL} from "node:url";
import {launched, opened} from "./browser.mjs";

const isotherm = process.env.ISOTHERM ?? "isotherm";
const images = fileURLToPath(new URL("../../docs/images/", import.meta.url));

/** Share of pixels that may differ: fonts and their smoothing depend on the machine. */
const TOLERANCE = .06;
/** A pixel is another from so much of 255 on, in any colour. */
const DISTANCE = 48;
const BYTES_MAX = 150_000;

/** @type {import("playwright-core").Browser} */
let browser;
let folder = "", record = "", trace = "";

/** A server whose hot memory moves after half a minute, and a batch job beside it. */
const scenario = {
  machine: {cpus: 2, nodes: [{size: "1 GiB"}], swap: {zram: "512 MiB"}},
  duration: "60s",
  processes: [
    {name: "server", mappings: [
      {name: "index", size: "48 MiB", access: [{pattern: "uniform", rate: "200000"}]},
      {name: "heap", size: "192 MiB", access: [
        {pattern: "uniform", hot: "25%", rate: "100000"}, {pattern: "uniform", rate: "300"}, {at: "30s", pattern: "sequential", hot: "15%", rate: "50000"},
      ]},
      {name: "archive", size: "96 MiB"},
    ]},
    {name: "batch", mappings: [{name: "input", size: "64 MiB", access: [{pattern: "sequential", rate: "2000"}]}]},
  ],
};

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "isotherm-pictures-"));
  // By the same words wherever it runs, as the page shows them.
  const options = {cwd: folder, argv0: "isotherm", stdio: /** @type {const} */ ("pipe")};
  writeFileSync(join(folder, "server.json"), JSON.stringify(scenario));
  execFileSync(isotherm, ["simulate", "server.json", "--preset", "prcl", "--seed", "1", "-o", "server.isotherm"], options);
  execFileSync(process.env.TRACE ?? "trace", [join(folder, "trace.isotherm")]);
  [record, trace] = ["server", "trace"].map(name => {
    execFileSync(isotherm, ["report", "heatmap", `${name}.isotherm`, "-o", `${name}.html`], options);
    return pathToFileURL(join(folder, `${name}.html`)).href;
  });
  browser = await launched();
});

after(async () => {
  await browser?.close();
  rmSync(folder, {recursive: true, force: true});
});

/** Which share of the pixels differs; 1 where the sizes do. @param {Buffer} one @param {Buffer} other */
async function difference(one, other) {
  const context = await browser.newContext(), page = await context.newPage();
  const share = await page.evaluate(async ({pictures, distance}) => {
    const [a, b] = await Promise.all(pictures.map(async picture => {
      const bitmap = await createImageBitmap(new Blob([Uint8Array.from(atob(picture), c => c.charCodeAt(0))]));
      const canvas = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
      canvas.drawImage(bitmap, 0, 0);
      return canvas.getImageData(0, 0, bitmap.width, bitmap.height);
    }));
    if (a.width !== b.width || a.height !== b.height) return 1;
    let different = 0;
    for (let i = 0; i < a.data.length; i += 4) different += [0, 1, 2].some(c => Math.abs(a.data[i + c] - b.data[i + c]) >= distance) ? 1 : 0;
    return different / (a.width * a.height);
  }, {pictures: [one, other].map(picture => picture.toString("base64")), distance: DISTANCE});
  await context.close();
  return share;
}

for (const [name, colorScheme, isTrace] of /** @type {const} */ ([
  ["memory-light", "light", false],
  ["memory-dark", "dark", false],
  ["what-if", "light", true],
])) {
  test(`the book's picture ${name} is the page's`, async t => {
    const url = isTrace ? trace : record;
    if (isTrace && !readFileSync(new URL(url), "utf8").includes("id=\"what-if-worker\"")) return t.skip("isotherm was built without what-if");
    const {page, wrong, close} = await opened(browser, url, {viewport: {width: 1000, height: 700}, colorScheme, reducedMotion: "reduce"});
    if (isTrace) {
      await page.getByRole("tab", {name: "What if"}).click();
      await page.waitForSelector("#what-try[data-state=exact]", {timeout: 60_000});
    }
    await page.waitForTimeout(300);
    const taken = await page.screenshot({animations: "disabled", caret: "hide"}), file = join(images, `${name}.png`);
    await close();
    assert.deepEqual(wrong, []);
    if (process.env.UPDATE_PICTURES) writeFileSync(file, taken);
    assert.ok(statSync(file).size <= BYTES_MAX, `${statSync(file).size} bytes`);
    const share = await difference(readFileSync(file), taken);
    assert.ok(share <= TOLERANCE, `${(share * 100).toFixed(1)} % of ${name}.png is another: UPDATE_PICTURES=1 takes it again`);
  });
}
