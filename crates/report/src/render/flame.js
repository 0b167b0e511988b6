(() => {
  const id = name => document.getElementById(name);
  const svg = document.querySelector("#flame svg"), field = id("flame-find"), told = id("flame-told");
  const NS = "http://www.w3.org/2000/svg", CHARACTER = 6.9, MARGIN = 16, ROOM = svg.viewBox.baseVal.width - 2 * MARGIN, LITTLE = .01;
  const all = [...svg.querySelectorAll("g.f")].map(g => {
    const rect = g.querySelector("rect"), [x, y, w] = ["x", "y", "width"].map(name => Number(rect.getAttribute(name)));
    return {g, rect, text: g.querySelector("text"), name: g.querySelector("title").textContent.split("\n")[0], x, y, w, bytes: Number(g.dataset.b), above: null};
  }).sort((a, b) => a.y - b.y || a.x - b.x);
  // Finds the box above each box; both rows go from left to right.
  const rows = [...Map.groupBy(all, box => box.y).values()];
  for (let row = 1; row < rows.length; row++) {
    let at = 0;
    for (const box of rows[row]) {
      while (at + 1 < rows[row - 1].length && rows[row - 1][at + 1].x <= box.x + LITTLE / 2) at++;
      box.above = rows[row - 1][at];
    }
  }
  const label = (box, x, width) => {
    const room = Math.floor((width - 8) / CHARACTER), letters = [...box.name];
    if (room >= 3 && !box.text) box.g.append(box.text = document.createElementNS(NS, "text"));
    if (!box.text) return;
    box.text.textContent = room < 3 ? "" : letters.length <= room ? box.name : letters.slice(0, room - 1).join("") + "…";
    box.text.setAttribute("x", String(x + 4));
    box.text.setAttribute("y", String(box.y + 13));
  };
  let shown = all[0];
  const zoom = to => {
    shown = to;
    const callers = new Set();
    for (let at = to.above; at; at = at.above) callers.add(at);
    for (const box of all) {
      const isAbove = callers.has(box), isIn = box.y >= to.y && box.x >= to.x - LITTLE && box.x + box.w <= to.x + to.w + LITTLE;
      box.g.style.display = isAbove || isIn ? "" : "none";
      box.g.classList.toggle("above", isAbove);
      if (!isAbove && !isIn) continue;
      const x = isAbove ? MARGIN : MARGIN + (box.x - to.x) / to.w * ROOM, width = isAbove ? ROOM : box.w / to.w * ROOM;
      box.rect.setAttribute("x", String(x));
      box.rect.setAttribute("width", String(width));
      label(box, x, width);
    }
  };
  const size = bytes => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    while (bytes >= 1023.5 && unit < units.length - 1) { bytes /= 1024; unit++; }
    return `${Number(bytes.toPrecision(3))} ${units[unit]}`;
  };
  const find = () => {
    const sought = field.value.trim().toLowerCase();
    let sum = 0, nr = 0, largest = null;
    for (const box of all) {
      const isFound = sought !== "" && box !== all[0] && box.name.toLowerCase().includes(sought);
      box.isIn = isFound || Boolean(box.above?.isIn);
      box.g.classList.toggle("found", isFound);
      if (!isFound) continue;
      nr++;
      // A match below another match counts once.
      if (!box.above?.isIn) sum += box.bytes;
      if (!largest || box.bytes > largest.bytes) largest = box;
    }
    told.textContent = sought === "" ? "" : `${nr} found, with ${size(sum)} (${(sum / all[0].bytes * 100).toPrecision(3)} %) of what is drawn`;
    return largest;
  };
  for (const box of all) box.g.addEventListener("click", () => zoom(box === shown ? box.above ?? box : box));
  field.addEventListener("input", find);
  id("flame-all").addEventListener("click", () => zoom(all[0]));
  document.addEventListener("keydown", e => {
    if (e.key === "Escape") zoom(all[0]);
    const found = e.key === "Enter" && e.target === field ? find() : null;
    if (found) zoom(found);
  });
})();
