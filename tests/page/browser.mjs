// Shared by the page's tests: a browser, a page whose errors are collected, and checks of accessibility.

import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import {createRequire} from "node:module";
import {chromium} from "playwright-core";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Debian's Chromium, or what `CHROMIUM` names. */
export const launched = () => chromium.launch({executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"]});

/** Opens a page, and tells of every request but its own, and of every error.
 * @param {import("playwright-core").Browser} browser @param {string} url @param {import("playwright-core").BrowserContextOptions} [options] */
export async function opened(browser, url, options = {}) {
  const context = await browser.newContext({viewport: {width: 1280, height: 900}, ...options});
  const page = await context.newPage();
  /** @type {string[]} */
  const wrong = [];
  page.on("pageerror", error => wrong.push(String(error)));
  page.on("console", message => message.type() === "error" && wrong.push(message.text()));
  page.on("request", request => !/^(data|blob):/.test(request.url()) && request.url().split("#")[0] !== url && wrong.push(request.url()));
  await page.goto(url);
  await page.waitForSelector("html[data-ready]", {timeout: 10_000});
  return {page, wrong, close: () => context.close()};
}

/** Holds that axe finds nothing serious. @param {import("playwright-core").Page} page */
export async function isOpenToAll(page) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => window.axe.run());
  const serious = found.violations.filter(v => v.impact === "serious" || v.impact === "critical");
  assert.deepEqual(serious.map(v => [v.id, v.nodes.map(n => n.html)]), []);
}

/** Holds that nothing is beyond the right edge. @param {import("playwright-core").Page} page */
export async function fits(page) {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  assert.ok(wide <= 0, `${wide} pixels too wide`);
}
