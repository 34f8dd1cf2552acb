// The table of a ground, its differences and ranks, its charts, and what is told of a method. All text goes through textContent.
const find = (id) => document.getElementById(id);
const NEAR = "≈", BEST = "★";

// ---- what is shown
data.methods.forEach((method) => find("other").append(element("option", { value: method }, `difference to ${method}`)));
const chosen = () => ({ side: find("side").value, ground: find("ground").value, other: find("other").value });
const cellsOf = (side, ground) => data.cells[side][ground];

// Differences are stored once a pair: the other way round signs and ends change places.
function difference(side, ground, column, method, other) {
  const pairs = data.differences[side][ground][column] || {};
  const [a, b] = [method, other].map((one) => data.methods.indexOf(one));
  if (pairs[`${a},${b}`]) return pairs[`${a},${b}`];
  const turned = pairs[`${b},${a}`];
  return turned && [-turned[0], turned[2] === null ? null : -turned[2], turned[1] === null ? null : -turned[1]];
}
function sign([mean, low, high], rising) { // 1: better, -1: worse, 0: open, null: one seed says nothing
  if (low === null) return null;
  return low <= 0 && high >= 0 ? 0 : (mean > 0) === rising ? 1 : -1;
}
const signed = (value, places) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(places)}`;

// ---- a cell: [text, class, value to sort by, title]
function valueCell(side, ground, method, column) {
  const [text, mark, mean, why] = cellsOf(side, ground)[method][column.name];
  return [mean === null ? why : `${mark} ${text}`.trim(), mark === BEST ? "best" : mark === NEAR ? "near" : mean === null ? "why" : "", mean];
}
function differenceCell(side, ground, method, column, other) {
  const found = method === other ? null : difference(side, ground, column.name, method, other);
  if (!found) return ["", "", null];
  const [mean, low, high] = found, way = sign(found, column.rising), places = column.decimals;
  const between = low === null ? "" : ` [${signed(low, places)}, ${signed(high, places)}]`;
  return [signed(mean, places) + between, way === 1 ? "win" : way === -1 ? "loss" : "", mean];
}
function overCell(side, method, column, other) {
  const rank = data.ranks[side][method]?.[column.name];
  if (!rank) return ["", "", null];
  const signs = data.grounds.map((_, ground) => difference(side, ground, column.name, method, other)).filter(Boolean).map((one) => sign(one, column.rising));
  const told = method === other || !signs.length ? "" : ` · ${[1, 0, -1].map((way) => signs.filter((one) => one === way).length).join("/")}`;
  const grounds = rank[1] === data.grounds.length ? "" : ` (${rank[1]})`;
  return [`${rank[0].toFixed(1)}${grounds}${told}`, "", rank[0]];
}

// ---- the table
function halves(text) { // a spread or an interval in smaller letters
  const at = text.search(/ [±[·]/);
  return at < 0 ? [text] : [text.slice(0, at), element("small", {}, text.slice(at))];
}
let sorted = { column: "accuracy", up: false };
function draw() {
  const { side, ground, other } = chosen(), over = ground === "", against = other || data.baseline;
  const shown = data.columns.filter((one) => (over || other ? one.quality : true) && data.shown[side].includes(one.name));
  const methods = data.methods.filter((one) => (over ? data.ranks[side][one] : cellsOf(side, ground)[one]));
  const cell = (method, column) => over ? overCell(side, method, column, against) : other ? differenceCell(side, ground, method, column, other) : valueCell(side, ground, method, column);
  const rows = methods.map((method) => [method, shown.map((column) => cell(method, column))]);
  const at = shown.findIndex((one) => one.name === sorted.column);
  rows.sort(([a, x], [b, y]) => {
    if (at < 0) return a.localeCompare(b) * (sorted.up ? 1 : -1);
    const [i, j] = [x[at][2], y[at][2]];
    return i === null || j === null ? (i === null) - (j === null) : (i - j) * (sorted.up ? 1 : -1);
  });
  const twins = new Map(rows.filter(([method]) => method.endsWith(data.plain)).map((row) => [row[0].slice(0, -data.plain.length), row]));
  const whole = (method) => (method.endsWith(data.plain) ? method.slice(0, -data.plain.length) : "");
  const ordered = rows.filter(([method]) => !methods.includes(whole(method))).flatMap((row) => (twins.has(row[0]) ? [row, twins.get(row[0])] : [row]));
  const head = (name, title, words) => {
    const own = sorted.column === name, state = own ? (sorted.up ? "ascending" : "descending") : "none";
    const press = () => { sorted = { column: name, up: own ? !sorted.up : name === "" || over || !data.columns.find((one) => one.name === name).rising }; draw(); find("table").querySelector("th:not([aria-sort=none]) .sort").focus(); };
    return element("th", { scope: "col", "aria-sort": state, title: words }, element("button", { class: "sort", type: "button", onclick: press }, title));
  };
  const heads = [head("", "Method", "method"), ...shown.map((one) => head(one.name, one.title, one.words))];
  const line = ([method, cells]) => element("tr", { class: data.asked.includes(method) ? "asked" : method.endsWith(data.plain) ? "twin" : "" },
    element("th", { scope: "row" }, element("button", { class: "open", type: "button", onclick: () => tell(method) }, method)),
    ...cells.map(([text, kind]) => element("td", { class: kind }, ...halves(text))));
  find("table").replaceChildren(element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...ordered.map(line)));
  find("about").textContent = over ? `Mean rank over ${data.grounds.length} grounds · on how many better/open/worse than ${against}, by the interval of each, not corrected for the number of methods.` : data.grounds[ground].title + (data.target[side][ground] ? `; target: ${data.target[side][ground]}` : "");
  find("key").textContent = over ? "A number in brackets: on so many grounds." : other ? `Differences to ${other} are paired by seed, with 95 % t intervals; coloured where the interval is on one side of zero; of 35 one or two are by chance.` : data.key;
  charts(side, over ? 0 : Number(ground));
}
["side", "ground", "other"].forEach((id) => find(id).addEventListener("change", () => {
  if (id !== "side") sorted = { column: "accuracy", up: find("ground").value === "" };
  draw();
}));

// ---- charts: a point a method, named where there is room
const SVG = "http://www.w3.org/2000/svg";
function drawn(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  made.append(...children);
  return made;
}
function ticks(low, high) {
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) found.push(Number(at.toPrecision(6)));
  return found;
}
function ends(values) {
  const low = Math.min(...values), high = Math.max(...values), room = (high - low) * 0.08 || Math.abs(high) * 0.05 || 1;
  return [low - room, high + room];
}
const pen = document.createElement("canvas").getContext("2d"); // which measures labels
pen.font = "11px system-ui, sans-serif";
function scatter(side, ground, across, upright) {
  const [x, y] = [across, upright].map((name) => data.columns.find((one) => one.name === name));
  const points = Object.entries(cellsOf(side, ground)).map(([method, cells]) => [method, cells[across]?.[2], cells[upright]?.[2]]).filter(([, a, b]) => a != null && b != null);
  if (points.length < 2) return "";
  const [left, right, top, bottom] = [46, 350, 10, 215], [x0, x1] = ends(points.map((one) => one[1])), [y0, y1] = ends(points.map((one) => one[2]));
  const px = (value) => left + ((value - x0) / (x1 - x0)) * (right - left), py = (value) => bottom - ((value - y0) / (y1 - y0)) * (bottom - top);
  const whole = drawn("svg", { viewBox: "0 0 360 250", role: "group", "aria-label": `${y.title} against ${x.title}` });
  ticks(y0, y1).forEach((at) => whole.append(drawn("line", { x1: left, x2: right, y1: py(at), y2: py(at) }), drawn("text", { x: left - 5, y: py(at) + 4, "text-anchor": "end" }, String(at))));
  ticks(x0, x1).forEach((at) => whole.append(drawn("text", { x: px(at), y: bottom + 14, "text-anchor": "middle" }, String(at))));
  whole.append(drawn("text", { x: (left + right) / 2, y: bottom + 29, "text-anchor": "middle" }, x.title));
  const taken = points.map(([, a, b]) => [px(a) - 4, py(b) - 4, px(a) + 4, py(b) + 4]);
  const free = ([a, b, c, d]) => a >= left && c <= 360 && b >= 0 && d <= bottom && taken.every(([e, f, g, h]) => c <= e || a >= g || d <= f || b >= h);
  points.sort(([a], [b]) => data.asked.includes(b) - data.asked.includes(a));
  for (const [method, a, b] of points) {
    const [cx, cy, width] = [px(a), py(b), pen.measureText(method).width + 2], told = `${method}: ${x.title} ${a.toFixed(x.decimals)}, ${y.title} ${b.toFixed(y.decimals)}`;
    const link = drawn("a", { class: data.asked.includes(method) ? "asked" : "", tabindex: "0", role: "button", "aria-label": told }, drawn("title", {}, told), drawn("circle", { cx, cy, r: 4.5 }));
    const places = [[cx + 7, cy - 6, "start"], [cx - 7, cy - 6, "end"], [cx, cy - 18, "middle"], [cx, cy + 6, "middle"]];
    const share = { start: 0, middle: 0.5, end: 1 }; // of a label is left of where it is anchored
    const box = ([u, v, anchor]) => [u - share[anchor] * width, v, u + (1 - share[anchor]) * width, v + 12];
    const place = places.find((one) => free(box(one)));
    if (place) { taken.push(box(place)); link.append(drawn("text", { x: place[0], y: place[1] + 10, "text-anchor": place[2], class: "label" }, method)); }
    link.addEventListener("click", () => tell(method));
    link.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); tell(method); } });
    whole.append(link);
  }
  return element("figure", { class: "panel" }, element("figcaption", { class: "panel-title" }, `${y.title} against ${x.title}`), whole);
}
function charts(side, ground) {
  document.querySelector(".where").textContent = `${data.grounds[ground].name}, ${data.sides[side].toLowerCase()}`;
  find("charts").replaceChildren(...data.pairs.map(([a, b]) => scatter(side, ground, a, b)).filter(Boolean));
}

// ---- what is told of a method
const dialog = find("story");
find("close").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
function plain(title, head, rows) {
  const line = (cells, tag) => element("tr", {}, ...cells.map((text) => element(tag, tag === "th" ? { scope: "col" } : {}, String(text ?? ""))));
  const table = element("table", { class: "plain" }, element("thead", {}, line(head, "th")), element("tbody", {}, ...rows.map((row) => line(row, "td"))));
  return element("div", { class: "scroll", role: "region", "aria-label": title, tabindex: "0" }, table);
}
function tell(method) {
  const body = find("story-body");
  find("story-title").textContent = method;
  body.replaceChildren();
  data.grounds.forEach((ground) => {
    const runs = data.runs[ground.name][method] || [];
    if (!runs.length) return;
    body.append(element("h3", {}, ground.title), plain(`Runs on ${ground.name}`, ["seed", "accuracy, global %", "accuracy, clients' mean %", "training s", "where"], runs.map((one) => one.row)));
    const first = element("details", {}, element("summary", {}, `Run file of seed ${runs[0].row[0]}, and commands`));
    first.append(element("pre", {}, runs[0].file), element("pre", {}, runs.map((one) => one.command).join("\n")));
    body.append(first);
  });
  (data.searches[method] || []).forEach(([dataset, rows]) => body.append(element("h3", {}, `Configuration search on ${dataset}`), plain(`Search on ${dataset}`, ["options", "validation NLL", "chosen"], rows)));
  dialog.showModal();
}
draw();
