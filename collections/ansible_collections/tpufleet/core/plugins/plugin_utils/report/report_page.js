// The page's behaviour: charts, comparison of runs, filter and sorted tables. All texts reach the document as text
// nodes and attributes, never as markup. The data of run N is the JSON in the element with the id "data-N".
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const COLOURS = 8, STYLES = 3, ROWS = 15;
  const LEFT = 54, RIGHT = 10, TOP = 10, BOTTOM = 36;
  const si = (value) => {
    for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (Math.abs(value) >= size) return `${+(value / size).toPrecision(4)}${letter}`;
    return `${+value.toPrecision(4)}`;
  };
  const percent = (value) => `${+(100 * value).toPrecision(3)} %`;
  const whole = (value) => Math.round(value).toLocaleString("en");
  // What a chart may show. "name" is that of the data's curve; a chart of "loss" also has the held-out loss.
  const METRICS = {
    loss: { title: "Loss", label: "nats per token", text: (value) => value.toPrecision(4), log: true },
    heldout: { title: "Held-out loss", label: "nats per token", text: (value) => value.toPrecision(4), log: true },
    rate: { title: "Tokens per second", label: "", text: si },
    mfu: { title: "MFU", label: "", text: percent },
    memory: { title: "Device memory", label: "GiB", text: (value) => `${+value.toPrecision(3)} GiB` },
  };

  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);
  function made(space, name, attributes, ...children) {
    const element = space ? document.createElementNS(space, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }
  const html = (name, attributes, ...children) => made("", name, attributes, ...children);
  const svg = (name, attributes, ...children) => made(SVG, name, attributes, ...children);

  const read = new Map();
  function dataOf(run) {
    if (!read.has(run)) read.set(run, JSON.parse(byId(`data-${run}`).textContent));
    return read.get(run);
  }

  // --- Scales ---
  function roundTicks(low, high, most) {
    if (!(high > low)) return [low];
    const rough = (high - low) / Math.max(most - 1, 1), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((digit) => digit * power).find((each) => each >= rough * (1 - 1e-9));
    const ticks = [];
    for (let n = Math.ceil(low / step - 1e-9); n <= Math.floor(high / step + 1e-9); n++)
      ticks.push(+(n * step).toPrecision(12));
    return ticks;
  }
  /** Return about ``most`` ticks, and never just one or two. */
  function fewTicks(low, high, most) {
    let ticks = [];
    for (let count = most; ticks.length < 3 && count < most + 4; count++) ticks = roundTicks(low, high, count);
    return ticks;
  }
  function logTicks(low, high, most) {
    const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
    let ticks = [];
    for (const digits of [[1, 1.5, 2, 3, 4, 5, 7], [1, 2, 5], [1]]) {
      ticks = [];
      for (let power = from; power <= to; power++)
        for (const digit of digits) ticks.push(+(digit * 10 ** power).toPrecision(12));
      ticks = ticks.filter((tick) => tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9));
      if (ticks.length <= most) break;
    }
    ticks = ticks.filter((_, place) => place % Math.ceil(ticks.length / most || 1) === 0);
    return ticks.length > 1 ? ticks : roundTicks(low, high, most);
  }
  function scale(low, high, start, end, log) {
    const at = log ? Math.log10 : (value) => value, a = at(low), b = at(high);
    return (value) => start + (b > a ? (at(value) - a) / (b - a) : 0.5) * (end - start);
  }
  /** Return the place of the first element of a sorted array that is at least the value. */
  function firstFrom(sorted, value) {
    let low = 0, high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < value) low = middle + 1; else high = middle;
    }
    return low;
  }
  function nearest(sorted, value) {
    const after = firstFrom(sorted, value), before = Math.max(after - 1, 0);
    if (after >= sorted.length) return before;
    return value - sorted[before] < sorted[after] - value ? before : after;
  }

  // --- Curves ---
  /** Return a curve of a run: its values over steps or, by time, over hours since the run's first step. */
  function seriesOf(run, metric, byTime, style, dots) {
    const data = dataOf(run), [steps, values] = data.curves[metric] || [[], []];
    const name = dots && metric === "heldout" ? "held out" : "training";
    const series = { name, x: steps, y: values, gaps: metric === "loss" ? data.gaps : [], style, dots };
    if (!byTime) return series;
    const [known, times] = data.curves.times || [[], []];
    if (!known.length) return { ...series, x: [], y: [], gaps: [] };
    const hours = (step) => {
      const after = Math.min(Math.max(firstFrom(known, step), 1), known.length - 1), before = Math.max(after - 1, 0);
      const share = after > before ? (step - known[before]) / (known[after] - known[before]) : 0;
      return (times[before] + Math.min(Math.max(share, 0), 1) * (times[after] - times[before]) - times[0]) / 3600;
    };
    return { ...series, x: steps.map(hours), gaps: series.gaps.map(hours) };
  }
  function pathOf(series, x, y, log) {
    let path = "", gap = 0, pen = false, alone = "";
    series.x.forEach((step, place) => {
      const value = series.y[place], from = gap;
      while (gap < series.gaps.length && series.gaps[gap] < step) gap++;
      if (gap !== from) pen = false;
      if (log && value <= 0) { pen = false; return; }
      const point = `${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
      if (!pen) path += alone;
      alone = pen ? "" : `L${point}`;
      path += `${pen ? "L" : "M"}${point}`;
      pen = true;
    });
    return path + alone; // a single point is a line of length 0, which the round cap shows as a dot
  }
  const styleOf = (number) => `s${number % COLOURS} d${Math.floor(number / COLOURS) % STYLES}`;
  const keyOf = (style) =>
    svg("svg", { class: "key", viewBox: "0 0 22 10", "aria-hidden": "true" }, svg("path", { class: `curve ${style}`, d: "M0 5H22" }));

  /** Draw a chart into a figure, as wide as the figure is; return whether there was anything to draw. */
  function draw(figure, { title, unit, text, label, series, log, height, tell }) {
    const shown = series.filter((each) => each.y.some((value) => !log || value > 0));
    figure.replaceChildren();
    if (!shown.length) return false;
    const output = html("output", {});
    const caption = html("figcaption", {}, html("b", {}, title));
    if (shown.length > 1 && !tell)
      for (const each of shown) caption.append(html("span", {}, keyOf(each.style), each.name));
    caption.append(output);
    const width = Math.max(figure.clientWidth, 240), right = width - RIGHT, bottom = height - BOTTOM;
    let [left, last, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const each of shown)
      each.x.forEach((step, place) => {
        const value = each.y[place];
        if (log && value <= 0) return;
        left = Math.min(left, step); last = Math.max(last, step);
        low = Math.min(low, value); high = Math.max(high, value);
      });
    if (log) { low /= 1.05; high *= 1.05; } else {
      const margin = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
      low = low >= 0 ? Math.max(0, low - margin) : low - margin;
      high += margin;
    }
    const x = scale(left, last, LEFT, right), y = scale(low, high, bottom, TOP, log);
    const said = shown.map((each) => `${tell ? `${each.name} ` : ""}from ${text(each.y[0])} to ${text(each.y[each.y.length - 1])}`);
    const picture = svg("svg", {
      role: "img", viewBox: `0 0 ${width} ${height}`, width, height,
      "aria-label": `${title} by ${unit}: ${said.slice(0, 4).join("; ")}`,
    });
    for (const tick of log ? logTicks(low, high, 7) : fewTicks(low, high, 6)) {
      const at = y(tick).toFixed(1);
      picture.append(svg("path", { class: "grid", d: `M${LEFT} ${at}H${right}` }));
      picture.append(svg("text", { class: "end", x: LEFT - 7, y: at, dy: 4 }, text === percent ? percent(tick) : si(tick)));
    }
    for (const tick of fewTicks(left, last, Math.max(3, Math.min(9, Math.floor(width / 90)))))
      picture.append(svg("text", { class: "middle", x: Math.min(x(tick), right - 8).toFixed(1), y: bottom + 15 }, si(tick)));
    picture.append(svg("text", { class: "middle", x: (LEFT + right) / 2, y: height - 5 }, unit));
    if (label) picture.append(svg("text", { class: "middle", transform: `translate(11 ${(TOP + bottom) / 2}) rotate(-90)` }, label));
    for (const each of shown) {
      picture.append(svg("path", { class: `curve ${each.style}`, d: pathOf(each, x, y, log) }));
      if (each.dots && each.x.length <= width / 14)
        each.x.forEach((step, place) => picture.append(svg("circle", { class: each.style, cx: x(step), cy: y(each.y[place]), r: 2.5 })));
    }
    const cursor = svg("path", { class: "cursor" });
    picture.append(cursor);
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const place = Math.min(Math.max((event.clientX - box.left) * (width / box.width), LEFT), right);
      const step = left + ((place - LEFT) / (right - LEFT)) * (last - left);
      const at = shown[0].x[nearest(shown[0].x, step)];
      cursor.setAttribute("d", `M${x(tell ? step : at).toFixed(1)} ${TOP}V${bottom}`);
      const values = shown.map((each) => text(each.y[nearest(each.x, step)]));
      const where = unit === "step" ? `step ${whole(tell ? step : at)}` : `${step.toPrecision(3)} h`;
      output.textContent = tell ? where : `${where}: ${values.join(" · ")}`;
      if (tell) tell(shown.map((each, n) => [each, values[n]]));
    });
    picture.addEventListener("pointerleave", () => {
      cursor.removeAttribute("d");
      output.textContent = "";
      if (tell) tell(null);
    });
    figure.append(caption, picture);
    return true;
  }

  // --- The charts of a run: drawn when its element is open, again when its width changes ---
  const logLosses = byId("log-losses");
  function drawRun(run) {
    for (const figure of all("figure.chart", run)) {
      const metric = METRICS[figure.dataset.metric], number = run.dataset.run;
      const series = [seriesOf(number, figure.dataset.metric, false, figure.dataset.style)];
      if (figure.dataset.metric === "loss") series.push(seriesOf(number, "heldout", false, "s1", true));
      const log = Boolean(metric.log && logLosses.checked);
      draw(figure, { ...metric, unit: "step", series, log, height: figure.dataset.metric === "loss" ? 260 : 170 });
    }
  }
  const runs = all("details.run");
  const widths = new Map();
  const redraw = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) {
      const width = Math.round(contentRect.width);
      if (!target.open || !width || widths.get(target) === width) continue;
      widths.set(target, width);
      drawRun(target);
    }
  });
  for (const run of runs) {
    if (run.open) redraw.observe(run);
    run.addEventListener("toggle", () => { if (run.open) redraw.observe(run); });
  }
  function openTarget() {
    const target = /^#run-\d+$/.test(location.hash) && byId(location.hash.slice(1));
    if (target) { target.open = true; target.scrollIntoView(); }
  }
  addEventListener("hashchange", openTarget);
  openTarget();

  // --- Tables: sorted by a click on a header ---
  function sortBy(table, column) {
    const header = table.tHead.rows[0].cells[column], rows = [...table.tBodies[0].rows];
    const numbers = rows.some((row) => row.cells[column].dataset.v !== undefined);
    const was = header.getAttribute("aria-sort");
    const first = header.dataset.first || "ascending";
    const order = was ? (was === "ascending" ? "descending" : "ascending") : first;
    const sign = order === "ascending" ? 1 : -1;
    const value = (row) => {
      const cell = row.cells[column];
      return numbers ? (cell.dataset.v === undefined ? null : +cell.dataset.v) : cell.textContent.trim() || null;
    };
    const compare = (a, b) => {
      if (a === null || b === null) return (a === null) - (b === null); // without a value: last in both orders
      return sign * (numbers ? a - b : a.localeCompare(b, "en", { numeric: true }));
    };
    rows.map((row) => [value(row), row]).sort(([a], [b]) => compare(a, b)).forEach(([, row]) => table.tBodies[0].append(row));
    for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", order);
  }
  for (const table of all("table.sortable"))
    for (const button of all("th button", table))
      button.addEventListener("click", () => { sortBy(table, button.closest("th").cellIndex); show(); });

  // --- The overview: filter, first rows, ticks ---
  const overview = byId("overview"), filter = byId("filter"), everything = byId("everything");
  let unfolded = false;
  function show() {
    if (!overview) return;
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0, matching = 0;
    for (const row of overview.tBodies[0].rows) {
      const matches = words.every((word) => row.textContent.toLowerCase().includes(word));
      matching += matches;
      row.hidden = !matches || (!unfolded && count >= ROWS);
      count += !row.hidden;
    }
    everything.hidden = unfolded ? matching <= ROWS : count === matching;
    everything.textContent = unfolded ? `Show the first ${ROWS}` : `Show all ${matching}`;
    byId("no-match").hidden = matching > 0;
  }
  if (overview) {
    filter.addEventListener("input", show);
    everything.addEventListener("click", () => { unfolded = !unfolded; show(); });
    all(".needs-script").forEach((each) => { each.hidden = false; });
    show();
  }

  // --- Several runs in one chart ---
  const panel = byId("compare"), chosen = [];
  const names = new Map(all("#overview tbody tr").map((row) => [row.dataset.run, row.dataset.name]));
  function choose(run, on) {
    const place = chosen.indexOf(run);
    if (on && place < 0) chosen.push(run);
    if (!on && place >= 0) chosen.splice(place, 1);
    for (const box of all(`input[data-pick="${run}"]`)) box.checked = on;
  }
  function compare() {
    panel.hidden = chosen.length === 0;
    if (panel.hidden) return;
    const name = byId("metric").value, metric = METRICS[name], byTime = byId("by-time").checked;
    const log = Boolean(metric.log && logLosses.checked);
    const series = chosen.map((run, number) => ({ ...seriesOf(run, name, byTime, styleOf(number)), name: names.get(run), run }));
    const values = new Map();
    const last = (each) => (each.y.length ? metric.text(each.y[each.y.length - 1]) : "no data");
    const tell = (told) => {
      const now = new Map((told || []).map(([each, value]) => [each.run, value]));
      for (const each of series) values.get(each.run).textContent = now.get(each.run) || last(each);
    };
    const drawn = draw(byId("together"), {
      ...metric, unit: byTime ? "hours since the first step" : "step", series, log, height: 340, tell,
    });
    if (!drawn) byId("together").append(html("p", { class: "none" }, `${metric.title}: none of these runs has data.`));
    byId("chosen").replaceChildren(...series.map((each) => {
      const value = html("span", { class: "dim" }, last(each));
      const remove = html("button", { type: "button", "aria-label": `Remove ${each.name} from the comparison` }, "×");
      remove.addEventListener("click", () => { choose(each.run, false); compare(); });
      values.set(each.run, value);
      const item = html("li", {}, keyOf(each.style), html("a", { href: `#run-${each.run}` }, each.name), value, remove);
      const paths = () => all("path.curve", byId("together"));
      const style = `curve ${each.style}`;
      item.addEventListener("pointerenter", () => paths().forEach((path) => path.classList.toggle("faint", path.getAttribute("class") !== style)));
      item.addEventListener("pointerleave", () => paths().forEach((path) => path.classList.remove("faint")));
      return item;
    }));
  }
  document.addEventListener("change", ({ target }) => {
    if (target.dataset.pick !== undefined) { choose(target.dataset.pick, target.checked); compare(); }
    if (target === logLosses) { runs.filter((run) => run.open).forEach(drawRun); compare(); }
    if (target.closest("#compare")) compare();
  });
  for (const button of all("button[data-runs]"))
    button.addEventListener("click", () => {
      [...chosen].forEach((run) => choose(run, false));
      button.dataset.runs.split(" ").forEach((run) => choose(run, true));
      compare();
      panel.scrollIntoView({ block: "nearest" });
    });
  if (panel) {
    byId("clear").addEventListener("click", () => { [...chosen].forEach((run) => choose(run, false)); compare(); });
    let width = 0;
    new ResizeObserver(() => {
      if (panel.clientWidth === width) return;
      width = panel.clientWidth;
      compare();
    }).observe(panel);
  }

  // --- Ages: how long ago each run changed, and how old the page is ---
  function ago(time) {
    const seconds = Date.now() / 1000 - time;
    for (const [size, name] of [[86400, "d"], [3600, "h"], [60, "min"]])
      if (seconds >= size) return `${Math.floor(seconds / size)} ${name} ago`;
    return "just now";
  }
  const written = byId("written");
  byId("age").textContent = ` (${ago(+written.dataset.time)})`;
  for (const cell of all("td.age")) {
    cell.title = `${cell.textContent} UTC`;
    cell.textContent = ago(+cell.dataset.v);
  }
})();
