// Tabs, sorting, charts when they come into view, and what is told of a run. All text goes through textContent.
const quoted = (text) => `"${String(text ?? "").replaceAll('"', '""')}"`; // in CSV
const all = (query, within = document) => [...within.querySelectorAll(query)];

// ---- tabs
const tabs = all("[role=tab]");
const panels = tabs.map((tab) => document.getElementById(tab.getAttribute("aria-controls")));
function show(number) {
  tabs.forEach((tab, i) => {
    tab.setAttribute("aria-selected", String(i === number));
    tab.tabIndex = i === number ? 0 : -1;
    panels[i].hidden = i !== number;
  });
}
let before = ""; // what the address led to before runs were told of
tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => { show(i); before = `#${panels[i].id}`; history.pushState(null, "", before); });
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const to = event.key === "Home" ? 0 : event.key === "End" ? tabs.length - 1 : step ? (i + step + tabs.length) % tabs.length : null;
    if (to === null) return;
    event.preventDefault();
    tabs[to].focus();
    tabs[to].click();
  });
});
if (tabs.length) show(0);

// ---- where an address leads: to a tab, to something within one, or to runs
const dialog = document.getElementById("story");
function follow() {
  const asked = decodeURIComponent(location.hash.slice(1));
  if (asked.startsWith("runs=")) return tell(asked.slice(5).split(","));
  if (dialog.open) dialog.close();
  before = location.hash;
  if (!asked && tabs.length) show(0); // back to where the page began
  const found = asked && document.getElementById(asked);
  if (!found) return;
  const panel = panels.findIndex((one) => one.contains(found));
  if (panel >= 0) show(panel);
  for (let up = found; up; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
  if (!panels.includes(found)) found.scrollIntoView();
}
window.addEventListener("hashchange", follow);
document.getElementById("close").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener("close", () => {
  if (location.hash.startsWith("#runs=")) history.replaceState(null, "", before || location.pathname + location.search);
});

// ---- sorting
const number = (text) => (/^[+\-−]?[\d.]+(e[+-]?\d+)?/i.test(text) ? parseFloat(text.replace("−", "-")) : NaN);
function key(row, column) {
  const cell = row.cells[column];
  const text = (cell.dataset.sort ?? cell.textContent).trim();
  return [text, number(text)];
}
all("table.sortable").forEach((table) => {
  all(".sort", table).forEach((button) => button.addEventListener("click", () => {
    const head = button.parentElement, up = head.getAttribute("aria-sort") !== "ascending", body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [key(row, head.cellIndex), row]);
    rows.sort(([[a, x]], [[b, y]]) => {
      if (!a || !b) return a ? -1 : b ? 1 : 0; // what is not run comes last
      const order = Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
      return up ? order : -order;
    });
    all("th", table.tHead).forEach((one) => one.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...rows.map(([, row]) => row));
  }));
});

// ---- charts
const drawn = new Map();
const config = { background: null, font: "system-ui, sans-serif", view: { stroke: null }, axis: { labelFontSize: 11, titleFontSize: 11, titleFontWeight: "normal", domain: false, tickSize: 3 } };
function draw(place, spec, csv, values = {}, opens = false) {
  if (drawn.has(place)) return drawn.get(place);
  const params = (spec.params || []).map((one) => (one.name in values ? { ...one, value: values[one.name] } : one));
  const parse = { x: "number", value: "number", images: "number", width: "number", client: "number", class: "number" };
  const used = Object.fromEntries(Object.entries(parse).filter(([name]) => csv.slice(0, csv.indexOf("\n")).split(",").includes(name)));
  const whole = { ...spec, params, data: { values: csv, format: { type: "csv", parse: used } }, autosize: { type: "fit-x", contains: "padding" } };
  const inner = element("div"); // Vega names what it draws in; the place has words of its own
  place.append(inner);
  const made = vegaEmbed(inner, whole, { renderer: "svg", actions: false, config, tooltip: { theme: "custom" } }).then(({ view }) => {
    ["role", "aria-label", "aria-roledescription"].forEach((name) => inner.removeAttribute(name));
    inner.setAttribute("aria-hidden", "true");
    if (opens) view.addEventListener("click", (event, item) => {
      const run = item?.datum?.run ?? item?.datum?.datum?.run; // the point itself, or the area that is nearest to it
      if (run) location.hash = `runs=${run}`;
    });
    return view;
  });
  drawn.set(place, made);
  return made;
}
const off = (figure) => all("input", figure).filter((box) => !box.checked).map((box) => box.value);
function drawPlot(place) {
  const figure = place.closest("[data-chart]"), chart = data.charts[figure.dataset.chart], panel = chart.panels[place.dataset.panel];
  return draw(place, chart.spec, panel.csv, { left: panel.x[0], right: panel.x[1], low: panel.y[0], high: panel.y[1], heights: panel.heights, room: 0.4 * place.clientWidth, hidden: off(figure) }, true);
}
const seen = new IntersectionObserver((entries) => entries.forEach((entry) => {
  if (!entry.isIntersecting) return;
  seen.unobserve(entry.target);
  drawPlot(entry.target);
}), { rootMargin: "300px" });
all("[data-chart]").forEach((figure) => {
  all(".plot", figure).forEach((place) => seen.observe(place));
  all(".switches input", figure).forEach((box) => box.addEventListener("change", () => {
    all(".plot", figure).forEach(async (place) => { if (drawn.has(place)) (await drawn.get(place)).signal("hidden", off(figure)).run(); });
  }));
  all("button.data", figure).forEach((button) => button.addEventListener("click", () => {
    const panels = data.charts[figure.dataset.chart].panels;
    const lines = panels.flatMap((panel) => panel.csv.trim().split("\n").slice(1).map((line) => `${quoted(panel.title)},${line}`));
    save(`${figure.dataset.chart}.csv`, [`panel,${panels[0].csv.split("\n")[0]}`, ...lines].join("\n"));
  }));
});
// A printed page has the whole tab.
window.addEventListener("beforeprint", () => all(".plot").filter((place) => place.offsetWidth).forEach((place) => drawPlot(place)));
function save(name, text) {
  const address = URL.createObjectURL(new Blob([text + "\n"], { type: "text/csv" }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// ---- what is told of a run
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b", "#9467bd", "#bcbd22"];
function runChart(title, spec, series, width = () => 1.2) {
  const names = Object.keys(series);
  const colour = (i) => COLOURS[i % COLOURS.length];
  const rows = names.flatMap((name, i) => series[name].map(([x, value]) => `${quoted(name)},${x},${value},${colour(i)},${width(name)}`));
  const place = element("div", { class: "plot", role: "img", "aria-label": `${title}: ${names.map((name) => `${name} ends at ${series[name].at(-1)[1]}`).join("; ")}` });
  const boxes = element("div", { class: "switches", role: "group", "aria-label": `Curves of ${title}` });
  if (names.length > 1) names.forEach((name, i) => {
    const box = element("input", { type: "checkbox", value: name, checked: "" });
    const swatch = element("span", { "aria-hidden": "true", style: `display:inline-block;width:1.2rem;height:3px;background:${colour(i)}` });
    box.addEventListener("change", async () => (await drawn.get(place)).signal("hidden", off(boxes)).run());
    boxes.append(element("label", {}, box, swatch, name));
  });
  later.push(() => draw(place, data.specs[spec], ["curve,x,value,colour,width", ...rows].join("\n")));
  return element("div", {}, element("h4", {}, title), boxes, place);
}
let later = [];
function plainTable(title, all, whole) {
  const kept = all.map((_, i) => i).filter((i) => whole.some((row) => row[i] !== "" && row[i] != null));
  const head = kept.map((i) => all[i]), rows = whole.map((row) => kept.map((i) => row[i]));
  const line = (cells, tag) => element("tr", {}, ...cells.map((text) => element(tag, tag === "th" ? { scope: "col" } : {}, String(text ?? ""))));
  const table = element("table", { class: "plain" }, element("thead", {}, line(head, "th")), element("tbody", {}, ...rows.map((row) => line(row, "td"))));
  return element("div", { class: "scroll", role: "region", "aria-label": title, tabindex: "0" }, table);
}
function facts(pairs) {
  return element("dl", { class: "facts" }, ...pairs.filter(([, text]) => text !== "" && text != null).flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, String(text))]));
}
function flat(tree, prefix = "") {
  return Object.entries(tree).flatMap(([name, value]) => (value && typeof value === "object" ? flat(value, `${prefix}${name} `) : [[prefix + name.replaceAll("_", " "), value]]));
}
const CLIENTS = ["client", "model", "dataset", "best", "last", "last five", "server's model there: best", "its last", "its last five", "note"];
function clientsOf(run) {
  const held = data.partitions[run.partition];
  const sizes = held ? held.train.map((row) => row.reduce((a, b) => a + b, 0)) : [];
  const extra = held ? ["training images", "classes"] : [];
  const rows = run.clients.map((row) => {
    const k = Number(row[0]); // none of their mean
    const own = held ? (k >= 0 ? [sizes[k], held.train[k].filter(Boolean).length] : ["", ""]) : [];
    return [...row.slice(0, 3), ...own, ...row.slice(3)];
  });
  return { held, sizes, head: [...CLIENTS.slice(0, 3), ...extra, ...CLIENTS.slice(3)], rows };
}
function story(name) {
  const run = data.runs[name], columns = run.columns, made = element("article", { class: "story" });
  made.append(element("h3", {}, `${columns.method}, seed ${columns.seed}`));
  made.append(facts([
    ...["experiment", "dataset", "dataset_used", "setting", "alpha", "stragglers", "axes", "rounds", "local_epochs", "batch_size"]
      .filter((key) => !(key === "dataset_used" && columns.dataset === columns.dataset_used) && !(key === "local_epochs" && columns[key] === "0"))
      .map((key) => [key.replaceAll("_", " "), columns[key]]),
    run.reproduces ? ["differs from the paper's run in", run.changes || "nothing"] : ["other than its file asks for", run.changes],
    ["diverged", run.diverged ? `in round ${run.diverged}` : ""],
    ["server's model on the full test set (%)", Object.entries(run.server).map(([key, value]) => `${key} ${value.toFixed(2)}`).join(", ")],
    ["run folder", run.folder],
  ]));
  const split = element("div", { class: "split" });
  const { global, mean, ...clients } = run.curves;
  const curves = { ...(global ? { "server's model": global } : {}), ...(mean ? { "clients' models on the full test set": mean } : {}) };
  if (Object.keys(curves).length) split.append(runChart("Accuracy on the full test set (%)", "curve", curves, () => 2));
  const named = Object.fromEntries(Object.entries(clients).map(([key, value]) => [`client ${key}`, value]));
  if (Object.keys(named).length) split.append(runChart("Accuracy of each client on its own shard (%)", "curve", named));
  if (Object.keys(run.reliability).length) split.append(runChart("Reliability of the last round (%)", "reliability", run.reliability, () => 2));
  for (const [key, values] of Object.entries(run.diagnostics)) if (values.length > 1) split.append(runChart(`Server: ${key.replaceAll("_", " ")}`, "logged", { [key]: values }, () => 2));
  const { held, sizes, head, rows } = clientsOf(run);
  if (held) {
    const heat = element("div", { class: "plot", role: "img", "aria-label": `Images of each class at each client: ${sizes.map((size, k) => `client ${k} has ${size}`).join(", ")}` });
    const counts = held.train.flatMap((row, k) => row.map((count, i) => [k, i, count]).filter(([, , count]) => count).map((one) => one.join(",")));
    later.push(() => draw(heat, data.specs.heat, ["client,class,images", ...counts].join("\n")));
    split.append(element("div", {}, element("h4", {}, "Training images by class and client"), heat));
    const points = run.clients.filter((row) => Number(row[0]) >= 0 && Number.isFinite(parseFloat(row[3]))).map((row) => `${row[0]},${quoted(row[1])},${sizes[row[0]]},${row[3]}`);
    if (points.length > 1) {
      const place = element("div", { class: "plot", role: "img", "aria-label": "Each client's best accuracy over its number of training images; the same numbers are in the table below" });
      later.push(() => draw(place, data.specs.clients, ["client,model,images,value", ...points].join("\n")));
      split.append(element("div", {}, element("h4", {}, "Accuracy by size of the shard"), place));
    }
  }
  made.append(split);
  if (rows.length) made.append(element("details", { open: "" }, element("summary", {}, `Each client, counted from 0: accuracy (%)${held ? ", images" : ""}`), plainTable("Each client", head, rows)));
  const measured = Object.entries(run.calibration);
  if (measured.length) {
    const names = [...new Set(measured.flatMap(([, values]) => Object.keys(values)))];
    made.append(element("details", { open: "" }, element("summary", {}, "Calibration in the last round"), plainTable("Calibration", ["predictor", ...names], measured.map(([key, values]) => [key, ...names.map((one) => values[one] ?? "")]))));
  }
  if (!Object.keys(run.reliability).length) made.append(element("p", { class: "small" }, "This record holds no bins of confidence: no reliability diagram."));
  if (Object.keys(run.diagnostics).length) made.append(element("details", {}, element("summary", {}, "What the server logged, in the last round"), facts(Object.entries(run.diagnostics).map(([key, values]) => [key.replaceAll("_", " "), values.at(-1)[1]]))));
  made.append(element("h4", {}, "Check it, and make it again"), element("pre", {}, element("code", {}, run.command)));
  made.append(element("details", {}, element("summary", {}, "Run file"), element("pre", {}, element("code", {}, run.file))));
  made.append(element("details", {}, element("summary", {}, "Provenance"), facts(flat(run.provenance))));
  return made;
}
function tell(names) {
  const known = names.filter((name) => name in data.runs);
  later = [];
  const body = document.getElementById("story-body");
  document.getElementById("story-title").textContent = known.length === 1 ? "A run" : `${known.length} runs`;
  all(".plot", body).forEach(async (place) => { const view = drawn.get(place); drawn.delete(place); (await view)?.finalize(); });
  body.replaceChildren(...(known.length ? known.map(story) : [element("p", {}, "This page knows no such run.")]));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  later.forEach((drawing) => drawing());
}
all("button.clients").forEach((button) => button.addEventListener("click", () => {
  const told = data.papers[button.dataset.paper].map((name) => [name, data.runs[name], clientsOf(data.runs[name])]);
  const heads = [...new Set(told.flatMap(([, , { head }]) => head))];
  const lines = told.flatMap(([name, run, { head, rows }]) => rows.map((row) =>
    [name, run.columns.method, run.columns.seed, ...heads.map((one) => row[head.indexOf(one)])].map(quoted).join(",")));
  save(`${button.dataset.paper}-clients.csv`, [["run", "method", "seed", ...heads].map(quoted).join(","), ...lines].join("\n"));
}));
follow();
