// Tables of processes and mappings, and reports as pictures.

import {bytes, duration, element, table} from "isotherm/format.js";

/** @typedef {import("./data.js").RecordJson} RecordJson */

/** @param {number|null} value */
const size = value => value === null ? "?" : bytes(value);

/** A table that may be wider than the page. @param {HTMLTableElement} inner */
export function wide(inner) {
  const made = element("div", "", "wide");
  made.tabIndex = 0;
  made.setAttribute("role", "region");
  made.setAttribute("aria-label", inner.caption?.textContent ?? "");
  made.append(inner);
  return made;
}

/** Processes by memory at their last snapshot; a row opens its heat map. @param {RecordJson} record @param {(label: string) => void} open */
export function processes(record, open) {
  const ages = record.targets[0]?.idle.map(([age]) => age) ?? [];
  const acted = new Map(record.processes.map(p => [p.label, p]));
  const rows = record.targets.map(t => [
    t.label, size(t.resident), size(t.working_set), ...t.idle.map(([, idle]) => size(idle)), bytes(t.unknown), size(t.swapped),
    acted.has(t.label) ? bytes(acted.get(t.label)?.applied ?? 0) : "—",
  ]);
  const head = ["process", "resident", "in use", ...ages.map(age => `idle ${duration(age)}`), "unknown", "swapped out", "acted on"];
  const made = table(head, rows, "Processes, at their last snapshot");
  const shown = new Set(record.layers.of.map(layer => layer.label));
  for (const row of made.tBodies[0].rows) {
    const first = row.cells[0], label = first.textContent ?? "";
    if (!shown.has(label)) continue;
    const button = element("button", label);
    button.title = "Show its heat map";
    button.addEventListener("click", () => open(label));
    first.replaceChildren(button);
  }
  const parts = [wide(made)];
  if (record.ended_targets) parts.push(note(`${record.ended_targets} had ended before.`));
  if (record.layers.left_out) parts.push(note(`Only the largest processes have heat maps; ${record.layers.left_out} have none.`));
  if (record.mappings.length) {
    const lines = record.mappings.map(m => [m.name, m.target, size(m.resident), bytes(m.idle)]);
    parts.push(wide(table(["mapping", "process", "resident", "idle for 5 s"], lines, "Mappings, those with most idle memory first")));
  }
  return parts;
}

/** Reports of the whole machine, as static pictures and as text. @param {RecordJson} record */
export function pictures(record) {
  return record.pictures.map(({title, svg, text}) => {
    const made = element("section"), picture = element("img"), told = element("pre", text);
    picture.src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
    picture.alt = `${title}; the text below says the same`;
    told.tabIndex = 0;
    made.append(element("h2", title), picture, told);
    return made;
  });
}

/** @param {string} text */
export function note(text) {
  const made = element("div");
  made.append(element("p", text, "note"));
  return made;
}
