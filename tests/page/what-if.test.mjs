// What-ifs in the browser: the simulated machine must answer byte for byte as it does natively. `ASK` and `TRACE` name
// crates/what-if's examples.

import assert from "node:assert/strict";
import {execFileSync} from "node:child_process";
import {mkdtempSync, readFileSync, rmSync, statSync} from "node:fs";
import {tmpdir} from "node:os";
import {join} from "node:path";
import {after, before, test} from "node:test";
import {pathToFileURL} from "node:url";
import {fits, isOpenToAll, launched, opened} from "./browser.mjs";

const isotherm = process.env.ISOTHERM ?? "isotherm";

/** @type {import("playwright-core").Browser} */
let browser;
let folder = "", trace = "", url = "";

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "isotherm-what-if-"));
  trace = join(folder, "trace.isotherm");
  execFileSync(process.env.TRACE ?? "trace", [trace]);
  const page = join(folder, "page.html");
  execFileSync(isotherm, ["report", "heatmap", trace, "-o", page], {stdio: "pipe"});
  url = pathToFileURL(page).href;
  browser = await launched();
});

after(async () => {
  await browser?.close();
  rmSync(folder, {recursive: true, force: true});
});

/** Opens the page where it asks what if. @param {import("playwright-core").BrowserContextOptions} [options] */
async function open(options) {
  const all = await opened(browser, url, options);
  await all.page.keyboard.press("4");
  await all.page.waitForSelector("#what-try[data-state=exact]", {timeout: 60_000});
  return all;
}

test("a page is small enough to send", () => {
  // The machine is of a release in what is sent: tests/dist weighs that.
  const text = readFileSync(new URL(url), "utf8");
  const data = text.match(/id="(data|trace|what-if-wasm)" type="application\/octet-stream">[^<]*/g).join("");
  assert.ok(text.length - data.length < 400_000, `${statSync(new URL(url)).size} bytes, ${data.length} of them data`);
});

test("the browser answers what is answered natively, byte for byte", async () => {
  const {page, wrong, close} = await open();
  const questions = [
    ["4K max 0% 0% 5s max pageout", null], ["4K max 0% 0% 3s max pageout", .01], ["64K max 0% 0% 2s max pageout", .005], ["2M max 0% 0% 10s max pageout", null],
    ["4K max 0% 0% 2s max pageout 16M 1s", null],
  ].map(([scheme, max_slowdown]) => ({schemes: [scheme], max_slowdown}));
  const input = questions.map(q => JSON.stringify(q)).join("\n");
  for (const one_in of ["1", "2"]) {
    const native = execFileSync(process.env.ASK ?? "ask", [trace, one_in], {input, encoding: "utf8"}).trim().split("\n");
    const inside = await page.evaluate(async ({questions, one_in}) => {
      const bytes = async id => Uint8Array.from(atob(document.getElementById(id).textContent.trim()), c => c.charCodeAt(0));
      const packed = new Blob([await bytes("what-if-wasm")]).stream().pipeThrough(new DecompressionStream("gzip"));
      const {instance} = await WebAssembly.instantiate(await new Response(packed).arrayBuffer(), {page: {reported: () => {}}}), machine = instance.exports;
      // Its memory may be another after it has made room.
      const put = (input, at = machine.isotherm_input(input.length)) => new Uint8Array(machine.memory.buffer, at, input.length).set(input);
      const out = () => new TextDecoder().decode(new Uint8Array(machine.memory.buffer, machine.isotherm_output(), machine.isotherm_output_bytes()).slice());
      put(await bytes("trace"));
      machine.isotherm_open(Number(one_in));
      const answers = [out()];
      for (const question of questions) {
        put(new TextEncoder().encode(JSON.stringify(question)));
        machine.isotherm_predict();
        answers.push(out());
      }
      return answers;
    }, {questions, one_in});
    assert.deepEqual(inside, native);
  }
  assert.deepEqual(wrong, []);
  await close();
});

test("a slider redraws at once, and ends exact", async () => {
  const {page, wrong, close} = await open();
  const before = await page.locator("#what .figures").innerText();
  await page.locator("#what-age").focus();
  for (let i = 0; i < 4; i++) await page.keyboard.press("ArrowRight");
  const drawn = await page.evaluate(() => window.isotherm.whatIf.drawn_ms);
  assert.ok(drawn < 100, `${drawn} ms`);
  await page.waitForSelector("#what-try[data-state=exact]", {timeout: 60_000});
  assert.notEqual(await page.locator("#what .figures").innerText(), before);
  await page.locator("#what-guard").selectOption("0.01");
  await page.waitForSelector("#what-try[data-state=exact]", {timeout: 60_000});
  assert.match(await page.locator("#what pre").first().innerText(), /^isotherm run --scheme '4K max 0% 0% \d+s max pageout' --max-slowdown 1% --pid PID$/);
  assert.deepEqual(wrong, []);
  await close();
});

test("what is predicted is what simulate predicts", async () => {
  const {page, close} = await open();
  await page.locator("#what-guard").selectOption("0.01");
  await page.waitForSelector("#what-try[data-state=exact]", {timeout: 60_000});
  const line = await page.locator("#what pre").first().innerText(), scheme = line.match(/'(.*)'/)[1];
  const said = execFileSync(isotherm, ["simulate", "--trace", trace, "--scheme", scheme, "--max-slowdown", "1%"], {encoding: "utf8", stdio: ["ignore", "pipe", "pipe"]});
  const share = Number(said.match(/predicted[^:]*: ([\d.]+) /)[1]);
  const told = await page.evaluate(() => window.isotherm.whatIf.known(window.isotherm.whatIf.setting).answer.prediction.saved_share.value);
  assert.equal(share.toFixed(1), (told * 100).toFixed(1));
  await close();
});

test("nothing of it stands in the way of anyone", async () => {
  for (const options of [{colorScheme: "light"}, {colorScheme: "dark"}, {viewport: {width: 390, height: 844}}]) {
    const {page, close} = await open(options);
    await isOpenToAll(page);
    await fits(page);
    await close();
  }
});

test("curves are what the reports say", async () => {
  const report = JSON.parse(execFileSync(isotherm, ["reclaim-curve", trace, "--json"], {encoding: "utf8"}));
  const {page, wrong, close} = await opened(browser, url);
  await page.keyboard.press("4");
  await page.getByRole("tab", {name: "Reclaim curve"}).click();
  const told = await page.evaluate(() => {
    const {container, record} = window.isotherm, {idle} = record.curves;
    return [container.array(idle.thresholds_s), container.array(idle.saved), container.array(idle.slowdown)].map(all => [...all]);
  });
  const points = report.points;
  assert.deepEqual(told, [points.map(p => p.threshold_ns / 1e9), points.map(p => p.saved_mean_bytes), points.map(p => p.slowdown)]);
  assert.match(await page.locator("#what-reclaim table").first().innerText(), /idle for/);
  await isOpenToAll(page);
  await page.keyboard.press("ArrowRight");
  assert.match(await page.locator("#what-huge").innerText(), /always/);
  await isOpenToAll(page);
  await fits(page);
  assert.deepEqual(wrong, []);
  await close();
});
