// Tests first-touch profiles: the page's view, and the report's own page. The record is made by `stacks_record`, without
// privileges; `STACKS` names that.

import assert from "node:assert/strict";
import {execFileSync} from "node:child_process";
import {mkdtempSync, rmSync} from "node:fs";
import {tmpdir} from "node:os";
import {join} from "node:path";
import {after, before, test} from "node:test";
import {pathToFileURL} from "node:url";
import {fits, isOpenToAll, launched, opened} from "./browser.mjs";

const isotherm = process.env.ISOTHERM ?? "isotherm";
const HOSTILE = "<img src=x onerror=\"window.hacked=1\">;\u202e\u001b[31m</script><script>window.hacked=1</script>";

/** @type {import("playwright-core").Browser} */
let browser;
let folder = "", usual = "", hostile = "";

/** Makes a record, the page of it, and the page of its report. @param {string} name @param {string[]} [names] */
function made(name, names = []) {
  const [record, page, report] = [".isotherm", ".html", "-blame.html"].map(end => join(folder, name + end));
  execFileSync(process.env.STACKS ?? "stacks_record", [record, ...names], {stdio: "pipe"});
  execFileSync(isotherm, ["report", "heatmap", record, "-o", page], {stdio: "pipe"});
  execFileSync(isotherm, ["report", "blame", record, "--of", "resident", "-o", report], {stdio: "pipe"});
  return record;
}

/** @param {string} record @param {string} [of] */
const pageOf = (record, of = "") => pathToFileURL(record.replace(".isotherm", `${of}.html`)).href;

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "isotherm-blame-"));
  usual = made("usual");
  hostile = made("hostile", [HOSTILE + "x".repeat(2000)]);
  browser = await launched();
});

after(async () => {
  await browser?.close();
  rmSync(folder, {recursive: true, force: true});
});

/** The page with its view open. @param {string} record @param {import("playwright-core").BrowserContextOptions} [options] */
async function viewed(record, options) {
  const all = await opened(browser, pageOf(record), options);
  await all.page.getByRole("tab", {name: "Blame"}).click();
  return all;
}

/** The rectangle of a box in the window. @param {import("playwright-core").Page} page @param {string} name */
const spot = (page, name) => page.evaluate(name => {
  const {blame} = window.isotherm, {x, y, w} = blame.spot(blame.boxes.find(box => box.name.startsWith(name)));
  const frame = blame.canvas.getBoundingClientRect();
  return {x: frame.x + x + w / 2, y: frame.y + y + 8, w};
}, name);

test("the page says what the report says, of every idle age and measure", async () => {
  const {page, wrong, close} = await viewed(usual);
  const told = await page.evaluate(() => window.isotherm.record.blame.answers.map(a => [a.measure, a.at_least_s, a.total, a.blamed, a.likely, a.before_sampling, a.not_sampled, a.list.map(f => [f.name, f.bytes, f.inclusive])]));
  // It is as long as 400 s: nothing can have been idle for 10 min.
  assert.deepEqual(told.map(([measure, age]) => `${measure} ${age}`), ["idle 5", "idle 30", "idle 60", "idle 300", "resident 0", "accessed 0", "refaulted 0"]);
  for (const [measure, age, ...facts] of told) {
    const text = execFileSync(isotherm, ["report", "blame", usual, "--of", measure, "--at-least", `${age}s`, "--json"], {encoding: "utf8", stdio: "pipe"}), report = JSON.parse(text);
    const list = report.blamed.map(f => [f.name, f.bytes, f.inclusive_bytes]);
    assert.deepEqual(facts, [report.total_bytes, report.blamed_bytes, report.likely_bytes, report.unknown.before_sampling, report.unknown.not_sampled, list]);
  }
  assert.equal(await page.locator("#blame select").inputValue(), "idle/60");
  await page.locator("#blame select").selectOption("resident/0");
  assert.match(await page.locator("#blame").innerText(), /220 MiB at 6 min 40 s: touched first by known code 192 MiB/);
  const widths = await page.evaluate(() => { const {boxes} = window.isotherm.blame; return [boxes[0].bytes, boxes.filter(b => b.row === 1).reduce((sum, b) => sum + b.bytes, 0)]; });
  assert.deepEqual(widths, [220 * 2 ** 20, 220 * 2 ** 20]);
  assert.deepEqual(wrong, []);
  await close();
});

test("pointing tells, a click shows what a function called, and finding says the sum", async () => {
  const {page, wrong, close} = await viewed(usual);
  await page.locator("#blame select").selectOption("resident/0");
  const before = await spot(page, "Server::serve");
  await page.mouse.move(before.x, before.y);
  assert.match(await page.locator("#blame .tip").innerText(), /Server::serve\(\)\s+server\s+96 MiB, 44 % of all\s+3 MiB of it likely/);
  await page.mouse.click(before.x, before.y);
  assert.ok((await spot(page, "Server::serve")).w > before.w * 2);
  await page.locator("#blame").getByRole("button", {name: "All"}).click();
  assert.equal((await spot(page, "Server::serve")).w, before.w);
  await page.locator("#blame input").fill("malloc");
  assert.match(await page.locator("#blame [role=status]").innerText(), /2 found, with 160 MiB \(73 %\)/);
  // A match below another match counts once.
  await page.locator("#blame input").fill("server");
  assert.match(await page.locator("#blame [role=status]").innerText(), /with 192 MiB/);
  await page.getByRole("button", {name: /libplugin/}).click();
  assert.match(await page.locator("#blame [role=status]").innerText(), /1 found, with 24/);
  assert.deepEqual(wrong, []);
  await close();
});

test("it is used by keys alone, and they move nothing else", async () => {
  const {page, close} = await viewed(usual);
  const view = await page.evaluate(() => ({...window.isotherm.heat.view})), said = page.locator("#blame [aria-live]");
  await page.locator("#blame canvas").focus();
  for (const [key, text] of [["ArrowDown", /^main, server/], ["ArrowDown", /^Server::load_index/], ["ArrowRight", /^Server::serve/], ["Enter", /^Shown: Server::serve/], ["ArrowUp", /^main/], ["0", /^Shown: all/], ["ArrowDown", /^main/], ["ArrowRight", /^touched before/]]) {
    await page.keyboard.press(/** @type {string} */ (key));
    assert.match(await said.innerText(), /** @type {RegExp} */ (text));
  }
  assert.deepEqual(await page.evaluate(() => ({...window.isotherm.heat.view})), view);
  await close();
});

test("what was chosen stays chosen when there is more to show", async () => {
  const {page, close} = await viewed(usual);
  await page.locator("#blame select").selectOption("resident/0");
  await page.locator("#blame input").fill("malloc");
  const {x, y} = await spot(page, "Server::serve");
  await page.mouse.click(x, y);
  await page.evaluate(() => window.isotherm.update(window.isotherm.container.buffer));
  assert.equal(await page.locator("#blame select").inputValue(), "resident/0");
  assert.match(await page.locator("#blame [role=status]").innerText(), /2 found/);
  assert.equal(await page.evaluate(() => window.isotherm.blame.zoomed.name), "Server::serve()");
  await close();
});

for (const [name, options] of /** @type {const} */ ([
  ["light", {colorScheme: "light"}],
  ["dark", {colorScheme: "dark"}],
  ["a phone", {viewport: {width: 390, height: 844}, hasTouch: true, isMobile: true}],
])) {
  test(`nothing stands in the way of anyone: ${name}`, async () => {
    const {page, wrong, close} = await viewed(usual, options);
    await isOpenToAll(page);
    await fits(page);
    if (process.env.PICTURES) await page.screenshot({path: join(process.env.PICTURES, `blame-${name.replace(" ", "-")}.png`)});
    assert.deepEqual(wrong, []);
    await close();
  });
}

test("hostile names are inert, on the page and in the report", async () => {
  const {page, wrong, close} = await viewed(hostile);
  await page.locator("#blame select").selectOption("resident/0");
  await page.locator("#blame input").fill("<img");
  assert.match(await page.locator("#blame [role=status]").innerText(), /2 found/);
  await page.evaluate(() => { const {blame} = window.isotherm; for (const box of blame.boxes) blame.zoom(box); });
  await fits(page);
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator("#blame img").count(), 0);
  assert.deepEqual(wrong, []);
  await close();
  const context = await browser.newContext(), report = await context.newPage();
  await report.goto(pageOf(hostile, "-blame"));
  await report.locator("#flame-find").fill("<img");
  assert.match(await report.locator("#flame-told").innerText(), /2 found/);
  assert.equal(await report.evaluate(() => window.hacked), undefined);
  assert.equal(await report.locator("img").count(), 0);
  await context.close();
});

test("the report's page zooms and finds", async () => {
  const context = await browser.newContext({viewport: {width: 1100, height: 700}}), page = await context.newPage();
  await page.goto(pageOf(usual, "-blame"));
  const box = page.locator("g.f", {hasText: "Server::serve"}).first(), width = async () => (await box.locator("rect").boundingBox())?.width ?? 0;
  const before = await width();
  await box.click();
  assert.ok(await width() > before * 2);
  await page.keyboard.press("Escape");
  assert.ok(Math.abs(await width() - before) < 1);
  await page.locator("#flame-find").fill("malloc");
  assert.match(await page.locator("#flame-told").innerText(), /2 found, with 160 MiB \(72.7 %\)/);
  await isOpenToAll(page);
  await context.close();
});

test("a record without stacks has no such view", async () => {
  const record = join(folder, "none.isotherm"), page = join(folder, "none.html");
  execFileSync(process.env.TRACE ?? "trace", [record]);
  execFileSync(isotherm, ["report", "heatmap", record, "-o", page], {stdio: "pipe"});
  const {page: shown, close} = await opened(browser, pathToFileURL(page).href);
  assert.equal(await shown.getByRole("tab", {name: "Blame"}).count(), 0);
  await close();
});
