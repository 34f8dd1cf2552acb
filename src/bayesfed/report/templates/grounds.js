// The table of a ground, its differences and ranks, its charts, and what is told of a method. All text goes through textContent.
const find = (id) => document.getElementById(id);
const NEAR = "≈", BEST = "★";

// ---- what is shown: kept in the address
const SWITCHES = ["side", "ground", "view", "other"];
const MAIN = ["accuracy", "ece", "ood", "worst", "megabytes", "time", "passes", "server_images"];
const VIEWS = {
  main: (one) => MAIN.includes(one.name),
  quality: (one) => one.quality,
  cost: (one) => !one.quality || one.name === "accuracy",
  "": () => true,
};
const chosen = () => Object.fromEntries(SWITCHES.map((name) => [name, find(name).value]));
const cellsOf = (side, ground) => data.cells[side][ground];
const methodsOf = (side, ground) => data.methods.filter((one) => (ground === "" ? data.ranks[side][one] : cellsOf(side, ground)[one]));
function choose(name, value) {
  if ([...find(name).options].some((one) => one.value === value)) find(name).value = value;
}
function offer(side, ground) { // the methods that there are differences to
  const other = find("other"), was = other.value;
  const first = element("option", { value: "" }, ground === "" ? `better/open/worse than ${data.baseline}` : "mean ± sd over seeds");
  other.replaceChildren(first, ...methodsOf(side, ground).map((method) => element("option", { value: method }, `difference to ${method}`)));
  choose("other", was);
}

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
  const mark = { 1: "▲ ", [-1]: "▼ " }[way] ?? "";
  return [mark + signed(mean, places) + between, way === 1 ? "win" : way === -1 ? "loss" : "", mean];
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
let sorted = { column: "accuracy", best: true, pressed: false };
function draw() {
  offer(find("side").value, find("ground").value);
  if ((find("ground").value === "" || find("other").value) && find("view").value === "cost") choose("view", "quality"); // costs have no differences
  const { side, ground, view, other } = chosen(), over = ground === "", against = other || data.baseline;
  history.replaceState(null, "", `#${new URLSearchParams(chosen())}`);
  const inView = VIEWS[view];
  const shown = data.columns.filter((one) => inView(one) && (one.quality || !(over || other)) && data.shown[side].includes(one.name));
  const methods = methodsOf(side, ground);
  const cell = (method, column) => over ? overCell(side, method, column, against) : other ? differenceCell(side, ground, method, column, other) : valueCell(side, ground, method, column);
  const rows = methods.map((method) => [method, shown.map((column) => cell(method, column))]);
  const by = sorted.column === "" || shown.some((one) => one.name === sorted.column) ? sorted.column : "accuracy";
  const at = shown.findIndex((one) => one.name === by), up = at < 0 || over ? sorted.best : sorted.best !== shown[at].rising;
  rows.sort(([a, x], [b, y]) => {
    if (at < 0) return a.localeCompare(b) * (up ? 1 : -1);
    const [i, j] = [x[at][2], y[at][2]];
    return i === null || j === null ? (i === null) - (j === null) : (i - j) * (up ? 1 : -1);
  });
  const nested = !sorted.pressed || by === ""; // a twin without the Bayesian part below its method
  const whole = (method) => (method.endsWith(data.plain) ? method.slice(0, -data.plain.length) : "");
  const twins = new Map(rows.filter(([method]) => methods.includes(whole(method))).map((row) => [whole(row[0]), row]));
  const ordered = nested ? rows.filter(([method]) => !methods.includes(whole(method))).flatMap((row) => (twins.has(row[0]) ? [row, twins.get(row[0])] : [row])) : rows;
  const head = (name, title, words) => {
    const state = by === name ? (up ? "ascending" : "descending") : "none";
    const press = () => { sorted = { column: name, best: by === name ? !sorted.best : true, pressed: true }; draw(); find("table").querySelector("th:not([aria-sort=none]) .sort").focus(); };
    return element("th", { scope: "col", "aria-sort": state, title: words }, element("button", { class: "sort", type: "button", onclick: press }, title));
  };
  const heads = [head("", "Method", "method"), ...shown.map((one) => head(one.name, over ? one.title.replace(/ [↑↓]$/, "") : one.title, one.words))];
  const some = (method) => (over ? "" : data.seeds[side][ground][method] ?? "");
  const line = ([method, cells]) => element("tr", { class: data.asked.includes(method) ? "asked" : nested && twins.get(whole(method)) ? "twin" : "" },
    element("th", { scope: "row" }, element("button", { class: "open", type: "button", onclick: () => tell(method) }, method, ...(some(method) ? [element("small", {}, ` ${some(method)}${some(method).includes(",") ? "" : " seeds"}`)] : []))),
    ...cells.map(([text, kind]) => element("td", { class: kind }, ...halves(text))));
  find("table").replaceChildren(element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...ordered.map(line)));
  find("about").textContent = over ? `Mean rank over ${data.grounds.length} grounds, 1 is best · on how many better/open/worse than ${against}, by the interval of each, not corrected for the number of methods.` : data.grounds[ground].title + (data.target[side][ground] ? `; target: ${data.target[side][ground]}` : "");
  const chance = ((methods.length - 1) * 0.05).toFixed(1);
  find("key").textContent = over ? "A number in brackets: on so many grounds." : other ? `Differences to ${other} are paired by seed, with 95 % t intervals. ▲ better, ▼ worse: the interval is on one side of zero. If no method differed, ${chance} of ${methods.length - 1} would be marked; the words above are corrected for that.` : data.key;
  charts(side, over ? 0 : Number(ground));
}
SWITCHES.forEach((id) => find(id).addEventListener("change", draw));

// ---- charts: a point a method, named where there is room
const SVG = "http://www.w3.org/2000/svg";
function drawn(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  made.append(...children);
  return made;
}
const ACCURACIES = [10, 30, 50, 70, 80, 90, 95, 97, 98, 99, 99.5];
const SCALES = { // room where most methods are: near 100 % and near an ECE of 0
  accuracy: [(value) => -Math.log(101 - value), ACCURACIES],
  predictive: [(value) => -Math.log(101 - value), ACCURACIES],
  ece: [(value) => Math.log(Math.max(value, 0.01)), [0.1, 0.3, 1, 3, 10, 30]],
};
function ticks(low, high) {
  if (low === high) return [low];
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) found.push(Number(at.toPrecision(6)));
  return found;
}
function axis(column, values, start, end) { // where a value lies, and ticks
  const [scale, fixed] = SCALES[column.name] ?? [(value) => value, null];
  const low = Math.min(...values), high = Math.max(...values), ends = [low, high].map(scale), room = (ends[1] - ends[0]) * 0.08 || 0.05;
  const at = (value) => start + ((scale(value) - ends[0] + room) / (ends[1] - ends[0] + 2 * room)) * (end - start);
  const inside = (value) => (at(value) - start) * (at(value) - end) <= 0;
  const found = (fixed ?? []).filter(inside);
  return [at, found.length > 2 ? found : ticks(low, high).filter(inside)];
}
const pen = document.createElement("canvas").getContext("2d"); // which measures labels
pen.font = "11px system-ui, sans-serif";
const PLACES = [[7, -6, "start"], [-7, -6, "end"], [0, -18, "middle"], [0, 6, "middle"]];
const FURTHER = [...PLACES, ...[-30, 20, -44, 34, -58, 48].flatMap((down) => [[12, down, "start"], [-12, down, "end"]])];
function scatter(side, ground, across, upright) {
  const [x, y] = [across, upright].map((name) => data.columns.find((one) => one.name === name));
  const found = Object.entries(cellsOf(side, ground)).map(([method, cells]) => [method, cells[across]?.[2], cells[upright]?.[2]]).filter(([, a, b]) => a != null && b != null);
  if (found.length < 2) return "";
  const [left, right, top, bottom] = [46, 350, 10, 215];
  const [px, acrossTicks] = axis(x, found.map((one) => one[1]), left, right), [py, uprightTicks] = axis(y, found.map((one) => one[2]), bottom, top);
  const better = `better: ${y.rising ? "up" : "down"} and ${x.rising ? "right" : "left"}`;
  const whole = drawn("svg", { viewBox: "0 0 360 250", role: "img", "aria-label": `${y.title} against ${x.title}; ${better}; the numbers are in the table` });
  uprightTicks.forEach((at) => whole.append(drawn("line", { x1: left, x2: right, y1: py(at), y2: py(at) }), drawn("text", { x: left - 5, y: py(at) + 4, "text-anchor": "end" }, String(at))));
  acrossTicks.forEach((at) => whole.append(drawn("text", { x: px(at), y: bottom + 14, "text-anchor": "middle" }, String(at))));
  whole.append(drawn("text", { x: (left + right) / 2, y: bottom + 29, "text-anchor": "middle" }, x.title));
  const taken = found.map(([, a, b]) => [px(a) - 4, py(b) - 4, px(a) + 4, py(b) + 4]);
  const free = ([a, b, c, d]) => a >= left && c <= 360 && b >= 0 && d <= bottom && taken.every(([e, f, g, h]) => c <= e || a >= g || d <= f || b >= h);
  const best = [x, y].flatMap((column) => found.filter(([method]) => cellsOf(side, ground)[method][column.name][1] === BEST).map(([method]) => method));
  const first = [...data.asked, data.baseline, ...best]; // named in any case where there is room at all
  const order = (method) => (first.includes(method) ? first.indexOf(method) : first.length);
  found.sort(([a], [b]) => order(a) - order(b));
  const points = [];
  for (const [method, a, b] of found) {
    const [cx, cy, width] = [px(a), py(b), pen.measureText(method).width + 2], told = `${method}: ${x.title} ${a.toFixed(x.decimals)}, ${y.title} ${b.toFixed(y.decimals)}`;
    const shape = method === data.baseline ? drawn("rect", { x: cx - 4.5, y: cy - 4.5, width: 9, height: 9 }) : drawn("circle", { cx, cy, r: 4.5 });
    const point = drawn("g", { class: data.asked.includes(method) ? "point asked" : "point" }, drawn("title", {}, told), shape);
    const share = { start: 0, middle: 0.5, end: 1 }; // of a label is left of where it is anchored
    const box = ([u, v, anchor]) => [cx + u - share[anchor] * width, cy + v, cx + u + (1 - share[anchor]) * width, cy + v + 12];
    const place = (first.includes(method) ? FURTHER : PLACES).find((one) => free(box(one)));
    if (place) {
      const [u, v, anchor] = place;
      taken.push(box(place));
      if (!PLACES.includes(place)) point.prepend(drawn("line", { class: "lead-line", x1: cx, y1: cy, x2: cx + u, y2: cy + v + 6 }));
      point.append(drawn("text", { x: cx + u, y: cy + v + 10, "text-anchor": anchor, class: "label" }, method));
    }
    point.addEventListener("click", () => tell(method));
    points.push(point);
  }
  whole.append(...points.reverse()); // those that are asked for, and the baseline, lie on top
  return element("figure", { class: "panel" }, element("figcaption", { class: "panel-title" }, `${y.title} against ${x.title}`, element("small", {}, ` ${better}`)), whole);
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
    body.append(element("h3", {}, ground.title), plain(`Runs on ${ground.name}`, ["seed", "accuracy, global %", "accuracy, clients' mean %", "seconds (CPU: of its cores)", "where"], runs.map((one) => one.row)));
    const first = element("details", {}, element("summary", {}, `Run file of seed ${runs[0].row[0]}, and commands`));
    first.append(element("pre", {}, runs[0].file), element("pre", {}, runs.map((one) => one.command).join("\n")));
    body.append(first);
  });
  (data.searches[method] || []).forEach(([dataset, rows]) => body.append(element("h3", {}, `Configuration search on ${dataset}`), plain(`Search on ${dataset}`, ["options", "validation NLL", "chosen"], rows)));
  dialog.showModal();
}
const asked = new URLSearchParams(location.hash.slice(1));
["side", "ground", "view"].filter((name) => asked.has(name)).forEach((name) => choose(name, asked.get(name)));
offer(find("side").value, find("ground").value);
choose("other", asked.get("other") ?? "");
draw();
