// The page in a browser: Debian's Chromium, by Playwright. `CHROMIUM` names another, `ISOTHERM` the command.

import assert from "node:assert/strict";
import {execFileSync, spawn} from "node:child_process";
import {mkdtempSync, readFileSync, rmSync, writeFileSync} from "node:fs";
import {tmpdir} from "node:os";
import {join} from "node:path";
import {after, before, test} from "node:test";
import {pathToFileURL} from "node:url";
import {fits, isOpenToAll, launched, opened} from "./browser.mjs";

const isotherm = process.env.ISOTHERM ?? "isotherm";
const HOSTILE = "<img src=x onerror=\"window.hacked=1\">\u202e\u001b[31m</script><script>window.hacked=1</script>";

/** @type {import("playwright-core").Browser} */
let browser;
let folder = "";

/** Simulates a machine, and makes the page of it. @param {string} name @param {object} scenario @param {string[]} schemes */
function made(name, scenario, schemes = ["--preset", "prcl"]) {
  const [from, record, page] = [".json", ".isotherm", ".html"].map(end => join(folder, name + end));
  writeFileSync(from, JSON.stringify(scenario));
  execFileSync(isotherm, ["simulate", from, ...schemes, "-o", record], {stdio: "pipe"});
  execFileSync(isotherm, ["report", "heatmap", record, "-o", page], {stdio: "pipe"});
  return {page: pathToFileURL(page).href, record};
}

/** @param {string} name @param {string} heap */
const scenario = (name, heap) => ({
  machine: {cpus: 2, nodes: [{size: "1 GiB"}], swap: {zram: "512 MiB"}},
  duration: "40s",
  processes: [
    {name, mappings: [
      {name: heap, size: "64 MiB", access: [{pattern: "uniform", hot: "10%", rate: "100000"}]},
      {name: "cold", size: "128 MiB"},
    ]},
    {name: "other", mappings: [{name: "cache", size: "32 MiB", access: [{pattern: "uniform", hot: "50%", rate: "1000"}]}]},
  ],
});

/** @type {{page: string, record: string}} */
let usual;

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "isotherm-page-"));
  usual = made("usual", scenario("server", "heap"));
  browser = await launched();
});

after(async () => {
  await browser?.close();
  rmSync(folder, {recursive: true, force: true});
});

/** @param {string} url @param {import("playwright-core").BrowserContextOptions} [options] */
const open = (url, options) => opened(browser, url, options);

/** The application's state. @param {import("playwright-core").Page} page */
const view = page => page.evaluate(() => ({...window.isotherm.heat.view}));

test("a page shows its record, and fetches nothing", async () => {
  const {page, wrong, close} = await open(usual.page);
  assert.deepEqual(wrong, []);
  assert.match(await page.locator("#target").innerText(), /server/);
  const colours = await page.evaluate(() => {
    const map = document.getElementById("map"), {x, y, w, h} = window.isotherm.heat.plot(), scale = window.devicePixelRatio;
    const data = map.getContext("2d").getImageData(x * scale, y * scale, w * scale, h * scale).data;
    const found = new Set();
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) found.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
    return found.size;
  });
  assert.ok(colours > 8, `${colours} colours`);
  await close();
});

test("without its data a page is small", () => {
  const text = readFileSync(new URL(usual.page), "utf8"), data = text.split("octet-stream\">")[1].split("<")[0];
  assert.ok(text.length - data.length < 400_000, `${text.length} characters, ${data.length} of them data`);
});

test("the wheel zooms, a drag moves, and zero shows all", async () => {
  const {page, wrong, close} = await open(usual.page);
  const all = await view(page);
  const {x, y, w, h} = await page.evaluate(() => window.isotherm.heat.plot());
  const box = await page.locator("#map").boundingBox();
  await page.mouse.move(box.x + x + w / 2, box.y + y + h / 2);
  await page.mouse.wheel(0, -300);
  await page.waitForTimeout(100);
  const near = await view(page);
  assert.ok(near.t1 - near.t0 < (all.t1 - all.t0) / 2 && near.v1 - near.v0 < (all.v1 - all.v0) / 2);
  await page.mouse.down();
  await page.mouse.move(box.x + x + w / 2 + 100, box.y + y + h / 2, {steps: 4});
  await page.mouse.up();
  assert.ok((await view(page)).t0 < near.t0);
  await page.keyboard.press("0");
  assert.deepEqual(await view(page), all);
  assert.deepEqual(wrong, []);
  await close();
});

test("pointing tells what is there, by mouse and by keys", async () => {
  const {page, close} = await open(usual.page);
  const box = await page.locator("#map").boundingBox();
  await page.mouse.move(box.x + 300, box.y + 200);
  await page.waitForTimeout(100);
  assert.match(await page.locator("#tip").innerText(), /accessed|swapped out|not watched|unknown/);
  await page.locator("#map").focus();
  await page.keyboard.press("Shift+ArrowRight");
  assert.match(await page.locator("#told").innerText(), /0x[0-9a-f]+/);
  await close();
});

test("a selection is told by mapping, and as a filter", async () => {
  const {page, close} = await open(usual.page);
  const box = await page.locator("#map").boundingBox();
  await page.keyboard.down("Shift");
  await page.mouse.move(box.x + 200, box.y + 40);
  await page.mouse.down();
  await page.mouse.move(box.x + 700, box.y + 300, {steps: 4});
  await page.mouse.up();
  await page.keyboard.up("Shift");
  const text = await page.locator("#selection").innerText();
  assert.match(text, /heap|cold/);
  const filter = JSON.parse(await page.locator("#selection pre").innerText());
  assert.ok(BigInt(filter.address_range[0]) < BigInt(filter.address_range[1]));
  await page.keyboard.press("Escape");
  assert.ok(await page.locator("#selection").isHidden());
  for (const key of ["m", "Shift+ArrowRight", "Shift+ArrowDown", "m"]) await page.keyboard.press(key);
  assert.ok(await page.locator("#selection").isVisible());
  await close();
});

test("a mapping or an address is found", async () => {
  const {page, close} = await open(usual.page);
  const all = await view(page);
  await page.keyboard.press("/");
  await page.keyboard.type("cold");
  await page.keyboard.press("Enter");
  assert.match(await page.locator("#found").innerText(), /1 of 1: \[cold\], 128 MiB/);
  const found = await view(page);
  assert.ok(found.v1 - found.v0 < all.v1 - all.v0);
  for (const [text, told] of [["nothing", "no mapping"], ["0x10", "not in the picture"]]) {
    await page.locator("#find").fill(text);
    await page.keyboard.press("Enter");
    assert.match(await page.locator("#found").innerText(), new RegExp(told));
  }
  await close();
});

test("what is told is what the reports say", async () => {
  const {page, close} = await open(usual.page);
  const report = JSON.parse(execFileSync(isotherm, ["report", "actions", usual.record, "--json"], {encoding: "utf8"}));
  const told = await page.evaluate(() => window.isotherm.record.schemes.map(s => [s.action, s.applied]));
  assert.deepEqual(told, report.schemes.map(s => [s.action, s.applied_bytes]));
  await page.keyboard.press("3");
  assert.match(await page.locator("#schemes").innerText(), /pageout/);
  await page.keyboard.press("2");
  await page.getByRole("button", {name: /other/}).click();
  assert.match(await page.locator("#target option:checked").innerText(), /other/);
  await page.keyboard.press("[");
  assert.match(await page.locator("#target option:checked").innerText(), /server/);
  await close();
});

test("pictures are there as tables", async () => {
  const {page, close} = await open(usual.page);
  await page.keyboard.press("v");
  const text = await page.locator("#numbers").innerText();
  assert.match(text, /heap/);
  assert.match(text, /in use/);
  await close();
});

for (const [name, options] of /** @type {const} */ ([
  ["light", {colorScheme: "light"}],
  ["dark", {colorScheme: "dark"}],
  ["a phone", {viewport: {width: 390, height: 844}, hasTouch: true, isMobile: true}],
])) {
  test(`nothing stands in the way of anyone: ${name}`, async () => {
    const {page, wrong, close} = await open(usual.page, options);
    for (const key of ["1", "2", "3", "1"]) {
      await page.keyboard.press(key);
      await isOpenToAll(page);
    }
    await fits(page);
    assert.deepEqual(wrong, []);
    await close();
  });
}

test("help opens and closes by keys", async () => {
  const {page, close} = await open(usual.page);
  await page.keyboard.press("?");
  assert.ok(await page.locator("#help").isVisible());
  await page.keyboard.press("Escape");
  assert.ok(await page.locator("#help").isHidden());
  await close();
});

test("it prints, light", async () => {
  const {page, close} = await open(usual.page, {colorScheme: "dark"});
  await page.emulateMedia({media: "print"});
  assert.ok(await page.locator("nav").isHidden());
  const pdf = await page.pdf();
  assert.ok(pdf.length > 20_000);
  assert.ok(await page.evaluate(() => !document.documentElement.classList.contains("dark")));
  await close();
});

test("hostile names are inert", async () => {
  const {page: url} = made("hostile", scenario(HOSTILE, HOSTILE + "x".repeat(10_000)));
  const {page, wrong, close} = await open(url);
  for (const key of ["v", "2", "3", "1"]) await page.keyboard.press(key);
  await page.evaluate(() => window.isotherm.heat.setSelection({t0: 0, t1: 30, from: 0, to: 1000}));
  await page.waitForTimeout(100);
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  // Pictures of ours alone.
  assert.equal(await page.locator("img:not([src^='data:image/svg+xml,'])").count(), 0);
  await fits(page);
  assert.deepEqual(wrong, []);
  await close();
});

test("two records are compared, by a server; a page of one has no such view", async () => {
  const other = made("other", scenario("server", "bigger"));
  await served([usual.record, other.record], async page => {
    await page.getByRole("tab", {name: "Compare"}).click();
    const text = await page.locator("#compare").innerText();
    assert.match(text, /bigger/);
    assert.match(text, /absent/);
    await isOpenToAll(page);
    await fits(page);
    await page.locator("#record").selectOption("1");
    await page.getByRole("tab", {name: "Memory"}).click();
    await page.locator("#find").fill("bigger");
    await page.keyboard.press("Enter");
    assert.match(await page.locator("#found").innerText(), /bigger/);
  });
  const {page, close} = await open(usual.page);
  assert.equal(await page.getByRole("tab", {name: "Compare"}).count(), 0);
  await close();
});

/** Serves what is named, and opens the page. @param {string[]} what @param {(page: import("playwright-core").Page) => Promise<void>} look */
async function served(what, look) {
  const server = spawn(isotherm, ["web", ...what, "--no-browser"], {stdio: ["ignore", "pipe", "ignore"]});
  try {
    const address = await new Promise(done => server.stdout.once("data", data => done(String(data).trim())));
    const context = await browser.newContext({viewport: {width: 1280, height: 900}}), page = await context.newPage();
    await page.goto(address);
    await page.waitForSelector("html[data-ready]", {timeout: 20_000});
    await look(page);
    await context.close();
  } finally {
    server.kill();
  }
}

test("who looks closer at a long record is told more, of the same addresses", async () => {
  const long = made("long", {...scenario("server", "heap"), duration: "400s"});
  await served([long.record], async page => {
    const facts = () => page.evaluate(() => {
      const {heat} = window.isotherm, {t0, t1} = heat.view, {layer} = heat.finest(t0, t1), column = Math.floor(((t0 + t1) / 2 - layer.start) / layer.step);
      const pieces = [];
      for (let i = layer.columns[column]; i < layer.columns[column + 1]; i++) pieces.push([layer.places[i], layer.units[i]]);
      return {step: layer.step, isExact: layer.isExact, nr: pieces.length, units: pieces.reduce((sum, [, units]) => sum + units, 0), end: Math.max(...pieces.map(([place, units]) => place + units)), length: heat.layer.length};
    });
    const before = await facts();
    assert.equal(before.isExact, false);
    await page.evaluate(() => window.isotherm.heat.setView({...window.isotherm.heat.view, t0: 100, t1: 110}));
    await page.waitForFunction(() => window.isotherm.heat.detail, undefined, {timeout: 20_000});
    const after = await facts();
    assert.ok(after.nr > before.nr, `${after.nr} > ${before.nr}`);
    assert.ok(after.isExact);
    assert.ok(after.end <= after.length && Math.abs(after.units - before.units) < before.units / 10, JSON.stringify({before, after}));
    assert.match(await page.evaluate(() => window.isotherm.heat.describe({x: 500, y: 300}).join("|")), /0x|not mapped|no memory/);
    // Other parts show the coarse data until the finer arrives.
    await page.evaluate(() => window.isotherm.heat.setView({...window.isotherm.heat.view, t0: 300, t1: 310}));
    assert.equal((await facts()).isExact, false);
  });
});

test("what is watched now comes as it happens, and the time that is shown goes with it", async () => {
  await served(["--simulated"], async page => {
    const end = () => page.evaluate(() => window.isotherm.heat.end);
    await page.waitForFunction(() => window.isotherm.heat.layer?.length, undefined, {timeout: 30_000});
    const before = await end();
    await page.waitForFunction(before => window.isotherm.heat.end > before + 1, before, {timeout: 30_000});
    // Read at once: another snapshot may come at any time.
    const [t0, t1, shown] = await page.evaluate(() => { const {view, end} = window.isotherm.heat; return [view.t0, view.t1, end]; });
    assert.deepEqual([t0, t1], [0, shown]);
    assert.equal(await page.locator("#status").innerText(), "live");
    // An update keeps the view.
    await page.waitForFunction(() => window.isotherm.heat.end > 6 * window.isotherm.heat.layer.step, undefined, {timeout: 30_000});
    await page.evaluate(() => window.isotherm.heat.setView({...window.isotherm.heat.view, t0: 0, t1: 0}));
    const part = (await view(page)).t1, now = await end();
    await page.waitForFunction(now => window.isotherm.heat.end > now, now, {timeout: 30_000});
    assert.equal((await view(page)).t1, part);
  });
});

const isRoot = process.getuid?.() === 0;
test("the machine's memory is told by group and class, of all that runs", {skip: isRoot ? false : "it takes root to watch all processes"}, async () => {
  const [record, made] = [".isotherm", ".html"].map(end => join(folder, "all" + end));
  execFileSync(isotherm, ["record", "--all", "--duration", "6s", "-o", record], {stdio: "pipe"});
  execFileSync(isotherm, ["report", "heatmap", record, "-o", made], {stdio: "pipe"});
  const report = JSON.parse(execFileSync(isotherm, ["report", "machine", record, "--json"], {encoding: "utf8"}));
  for (const options of [{}, {colorScheme: /** @type {const} */ ("dark")}, {viewport: {width: 390, height: 844}, isMobile: true}]) {
    const {page, wrong, close} = await open(pathToFileURL(made).href, options);
    await page.getByRole("tab", {name: "Machine"}).click();
    await page.waitForSelector(".cell");
    assert.ok(await page.locator(".cell").count() > 5);
    assert.equal(await page.evaluate(() => window.isotherm.record.machine.used), report.used_bytes);
    // No part of a whole is larger than it, and none is beside it.
    assert.ok(await page.evaluate(() => {
      const map = document.querySelector(".treemap").getBoundingClientRect();
      return [...document.querySelectorAll(".cell")].every(cell => { const c = cell.getBoundingClientRect(); return c.left >= map.left - 1 && c.right <= map.right + 1 && c.bottom <= map.bottom + 1; });
    }));
    await isOpenToAll(page);
    await fits(page);
    assert.deepEqual(wrong, []);
    await close();
  }
});

test("what schemes did, the guard and tiers are over the same seconds, and as numbers", async () => {
  const {page: url} = made("tiers", {...scenario("server", "heap"), machine: {cpus: 2, nodes: [{size: "512 MiB"}, {size: "1 GiB"}]}}, ["--scheme", "4K max 0 0 5s max migrate_cold 1"]);
  const {page, wrong, close} = await open(url);
  await page.getByRole("tab", {name: "Tiers"}).click();
  assert.match(await page.locator("#tiers").innerText(), /from node 0 to 1/);
  await isOpenToAll(page);
  await page.locator("#tiers summary").first().click();
  assert.match(await page.locator("#tiers details table").innerText(), /MiB/);
  await page.getByRole("tab", {name: "Schemes"}).click();
  assert.match(await page.locator("#schemes").innerText(), /migrate_cold/);
  await page.evaluate(() => window.isotherm.heat.setView({...window.isotherm.heat.view, t0: 5, t1: 15}));
  assert.deepEqual(await page.evaluate(() => window.isotherm.linked.charts.map(chart => [chart.plot.scales.x.min, chart.plot.scales.x.max])), [[5, 15], [5, 15]]);
  assert.deepEqual(wrong, []);
  await close();
});

test("a damaged page says so", async () => {
  const path = new URL(usual.page), text = readFileSync(path, "utf8");
  const at = text.indexOf("octet-stream\">") + 200;
  const broken = join(folder, "broken.html");
  writeFileSync(broken, text.slice(0, at) + "AAAA" + text.slice(at + 4));
  const context = await browser.newContext(), page = await context.newPage();
  await page.goto(pathToFileURL(broken).href);
  await page.getByRole("alert").waitFor({timeout: 5000});
  assert.match(await page.getByRole("alert").innerText(), /cannot be shown/);
  await context.close();
});
