// Numbers for people: sizes, times, shares, addresses.

/** @param {string} text */
const trim = text => text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;

/** A duration of so many seconds. @param {number} s @returns {string} */
export function duration(s) {
  if (s <= 0) return "0 s";
  if (s < 0.9995e-3) return trim((s * 1e6).toPrecision(3)) + " µs";
  if (s < 0.9995) return trim((s * 1000).toPrecision(3)) + " ms";
  if (s < 60) return trim(s.toFixed(2)) + " s";
  const whole = Math.round(s);
  /** @type {(a: number, b: number, x: string, y: string) => string} */
  const two = (a, b, x, y) => b ? `${a} ${x} ${b} ${y}` : `${a} ${x}`;
  if (whole < 3600) return two(Math.floor(whole / 60), whole % 60, "min", "s");
  if (whole < 86400) return two(Math.floor(whole / 3600), Math.floor(whole % 3600 / 60), "h", "min");
  return two(Math.floor(whole / 86400), Math.floor(whole % 86400 / 3600), "d", "h");
}

/** A share of 0 to 1; a value above 0 is never printed as 0. @param {number} share */
export function percent(share) {
  const p = share * 100;
  if (p === 0) return "0 %";
  if (p < 0.1) return "<0.1 %";
  return (p < 9.95 ? trim(p.toFixed(1)) : p.toFixed(0)) + " %";
}

/** A small share, such as a slowdown, with more digits. @param {number} share */
export function finePercent(share) {
  const p = share * 100;
  return p === 0 || p >= 9.95 ? percent(share) : p < 0.001 ? "<0.001 %" : trim(p.toPrecision(2)) + " %";
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** A size. @param {number} value */
export function bytes(value) {
  let unit = 0;
  while (value >= 1023.5 && unit < UNITS.length - 1) { value /= 1024; unit++; }
  return trim(value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : value.toFixed(0)) + " " + UNITS[unit];
}

/** Places of marks on a scale of sizes, powers of two apart or small multiples of them.
 * @param {number} most @param {number} wanted @returns {number[]} */
export function byteTicks(most, wanted) {
  let step = 1;
  while (most / step > wanted) step *= 2;
  return Array.from({length: Math.floor(most / step) + 1}, (_, n) => n * step);
}

const STEPS = [1e-3, 2e-3, 5e-3, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 604800];

/** About `wanted` round times between two times, for an axis. @param {number} from @param {number} to @param {number} wanted @returns {number[]} */
export function timeTicks(from, to, wanted) {
  const step = STEPS.find(s => (to - from) / s <= Math.max(2, wanted)) || 2592000;
  const ticks = [];
  for (let n = Math.ceil(from / step - 1e-9); n * step <= to + 1e-9; n++) ticks.push(n * step);
  return ticks;
}

/** @param {bigint} address */
export const hex = address => "0x" + address.toString(16);

/** An element with text, which is never parsed as markup.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} name @param {string} [text] @param {string} [cls] @returns {HTMLElementTagNameMap[K]} */
export function element(name, text = "", cls = "") {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  if (cls) made.className = cls;
  return made;
}

/** A table of text; columns after the first are numbers.
 * @param {string[]} head @param {string[][]} rows @param {string} caption */
export function table(head, rows, caption) {
  const made = element("table");
  made.append(element("caption", caption));
  const top = made.createTHead().insertRow();
  for (const text of head) {
    const cell = element("th", text);
    cell.scope = "col";
    top.append(cell);
  }
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((text, at) => {
      const cell = element(at ? "td" : "th", text);
      if (cell instanceof HTMLTableCellElement && !at) cell.scope = "row";
      line.append(cell);
    });
  }
  return made;
}
