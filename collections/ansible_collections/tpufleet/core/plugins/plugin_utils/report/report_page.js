// The page's behaviour: charts and comparison of runs, filter, sorted tables. Texts reach the
// document as text nodes and attributes, never as markup. The data of run N is the JSON in the
// element with the id "data-N".
"use strict";
(() => {
  const { draw, html, keyOf, firstFrom, si, percent } = charts;
  const COLOURS = 8;
  const STYLES = 3;
  const ROWS = 15;
  const nats = { label: "nats per token", text: (value) => value.toPrecision(4), log: true };
  const gib = (value) => `${+value.toPrecision(3)} GiB`;
  // The curves by their names in the data; "log" is whether their axis may be logarithmic.
  const METRICS = {
    loss: { title: "Loss", ...nats },
    heldout: { title: "Held-out loss", ...nats },
    rate: { title: "Tokens per second", text: si, isSteady: true },
    mfu: { title: "MFU", text: percent, isSteady: true },
    memory: { title: "Device memory", label: "GiB", text: gib, isSteady: true },
  };

  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);
  const dataByRun = new Map();
  function dataOf(run) {
    if (!dataByRun.has(run)) dataByRun.set(run, JSON.parse(byId(`data-${run}`).textContent));
    return dataByRun.get(run);
  }

  // --- Curves ---
  /** Return the function from steps to hours since the run's first step; null without times. */
  function hoursOf(data) {
    const [steps, times] = data.curves.times || [[], []];
    if (!steps.length) return null;
    return (step) => {
      const after = Math.min(Math.max(firstFrom(steps, step), 1), steps.length - 1);
      const before = Math.max(after - 1, 0);
      const span = steps[after] - steps[before];
      const share = span > 0 ? Math.min(Math.max((step - steps[before]) / span, 0), 1) : 0;
      return (times[before] + share * (times[after] - times[before]) - times[0]) / 3600;
    };
  }
  /** Return a curve of a run, over steps or hours, as a series for charts.draw. */
  function seriesOf(run, metric, style, byTime) {
    const data = dataOf(run);
    const [steps, y] = data.curves[metric] || [[], []];
    const gaps = metric === "loss" ? data.gaps : [];
    if (!byTime) return { x: steps, y, gaps, style };
    const hours = hoursOf(data);
    return hours
      ? { x: steps.map(hours), y, gaps: gaps.map(hours), style }
      : { x: [], y: [], gaps: [], style };
  }

  // --- The charts of a run: drawn when its element is open, again when its width changes ---
  const logLosses = byId("log-losses");
  const isLog = (metric) => Boolean(metric.log && logLosses.checked);
  function drawRun(element) {
    const run = element.dataset.run;
    for (const figure of all("figure.chart", element)) {
      const { metric: name, style } = figure.dataset;
      const metric = METRICS[name];
      const axes = { unit: "step", log: isLog(metric) };
      if (name === "loss") {
        const training = { ...seriesOf(run, "loss", style), name: "training" };
        const heldout = { ...seriesOf(run, "heldout", "s1"), name: "held out", dots: true };
        const { starts } = dataOf(run);
        draw(figure, { ...metric, ...axes, series: [training, heldout], starts, height: 260 });
      } else {
        draw(figure, { ...metric, ...axes, series: [seriesOf(run, name, style)], height: 170 });
      }
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
    run.addEventListener("toggle", () => {
      if (run.open) redraw.observe(run);
    });
  }
  function openTarget() {
    const target = /^#run-\d+$/.test(location.hash) && byId(location.hash.slice(1));
    if (target) {
      target.open = true;
      target.scrollIntoView();
    }
  }
  addEventListener("hashchange", openTarget);
  openTarget();

  // --- Tables: sorted by a click on a header ---
  function sortBy(table, column) {
    const headers = table.tHead.rows[0].cells;
    const header = headers[column];
    const currentOrder = header.getAttribute("aria-sort");
    const other = currentOrder === "ascending" ? "descending" : "ascending";
    const order = currentOrder ? other : header.dataset.first || "ascending";
    const sign = order === "ascending" ? 1 : -1;
    const rows = [...table.tBodies[0].rows];
    const areNumbers = rows.some((row) => row.cells[column].dataset.v !== undefined);
    const valueOf = ({ dataset, textContent }) =>
      areNumbers ? dataset.v && +dataset.v : textContent.trim() || undefined;
    const compareValues = (a, b) => {
      // Rows without a value are last in both orders.
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
      return sign * (areNumbers ? a - b : a.localeCompare(b, "en", { numeric: true }));
    };
    const valuesAndRows = rows.map((row) => [valueOf(row.cells[column]), row]);
    valuesAndRows.sort(([a], [b]) => compareValues(a, b));
    table.tBodies[0].append(...valuesAndRows.map(([, row]) => row));
    for (const cell of headers) cell.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", order);
  }
  for (const table of all("table.sortable"))
    for (const button of all("th button", table))
      button.addEventListener("click", () => {
        sortBy(table, button.closest("th").cellIndex);
        show();
      });

  // --- The overview: filter and number of rows ---
  const overview = byId("overview");
  const filter = byId("filter");
  const everything = byId("everything");
  let unfolded = false;
  function show() {
    if (!overview) return;
    const terms = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    let matching = 0;
    for (const row of overview.tBodies[0].rows) {
      const matches = terms.every((term) => row.textContent.toLowerCase().includes(term));
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
    everything.addEventListener("click", () => {
      unfolded = !unfolded;
      show();
    });
    all(".needs-script").forEach((element) => {
      element.hidden = false;
    });
    show();
  }

  // --- Several runs in one chart ---
  const panel = byId("compare");
  const together = byId("together");
  const chosen = [];
  const nameOf = (run) => document.querySelector(`#overview [data-run="${run}"]`).dataset.name;
  const styleOf = (index) => `s${index % COLOURS} d${Math.floor(index / COLOURS) % STYLES}`;
  function choose(run, on) {
    const index = chosen.indexOf(run);
    if (on && index < 0) chosen.push(run);
    if (!on && index >= 0) chosen.splice(index, 1);
    for (const box of all(`input[data-pick="${run}"]`)) box.checked = on;
  }
  function chooseOnly(runs) {
    for (const run of [...chosen]) choose(run, false);
    for (const run of runs) choose(run, true);
    compare();
  }
  /** Return a line of the legend; while the pointer is on it, the other curves are faint. */
  function legendItem({ run, name, style }, value) {
    const label = `Remove ${name} from the comparison`;
    const remove = html("button", { type: "button", "aria-label": label }, "×");
    remove.addEventListener("click", () => {
      choose(run, false);
      compare();
    });
    const link = html("a", { href: `#run-${run}` }, name);
    const item = html("li", {}, keyOf(style), link, value, remove);
    const fade = (isFaint) => () => {
      for (const path of all("path.curve", together))
        path.classList.toggle("faint", isFaint && path.getAttribute("class") !== `curve ${style}`);
    };
    item.addEventListener("pointerenter", fade(true));
    item.addEventListener("pointerleave", fade(false));
    return item;
  }
  function compare() {
    panel.hidden = chosen.length === 0;
    if (panel.hidden) return;
    const name = byId("metric").value;
    const metric = METRICS[name];
    const byTime = byId("by-time").checked;
    const series = chosen.map((run, index) => ({
      ...seriesOf(run, name, styleOf(index), byTime),
      name: nameOf(run),
      run,
    }));
    const lastOf = ({ y }) => (y.length ? metric.text(y.at(-1)) : "no data");
    const values = new Map(
      series.map((curve) => [curve.run, html("span", { class: "dim" }, lastOf(curve))]),
    );
    const onPoint = (pointedValues) => {
      for (const curve of series) values.get(curve.run).textContent = lastOf(curve);
      for (const [{ run }, value] of pointedValues || []) values.get(run).textContent = value;
    };
    const unit = byTime ? "hours since the first step" : "step";
    if (!draw(together, { ...metric, unit, series, log: isLog(metric), height: 340, onPoint }))
      together.append(html("p", { class: "none" }, `${metric.title}: no data for these runs.`));
    byId("chosen").replaceChildren(
      ...series.map((curve) => legendItem(curve, values.get(curve.run))),
    );
  }
  document.addEventListener("change", ({ target }) => {
    if (target.dataset.pick !== undefined) {
      choose(target.dataset.pick, target.checked);
      compare();
    }
    if (target === logLosses) {
      runs.filter((run) => run.open).forEach(drawRun);
      compare();
    }
    if (target.closest("#compare")) compare();
  });
  for (const button of all("button[data-runs]"))
    button.addEventListener("click", () => {
      chooseOnly(button.dataset.runs.split(" "));
      panel.scrollIntoView({ block: "nearest" });
    });
  if (panel) {
    for (const [value, { title }] of Object.entries(METRICS))
      byId("metric").append(html("option", { value }, title));
    byId("clear").addEventListener("click", () => chooseOnly([]));
    let width = 0;
    new ResizeObserver(() => {
      if (panel.clientWidth === width) return;
      width = panel.clientWidth;
      compare();
    }).observe(panel);
  }

  // --- Ages: how long ago each run changed, and how old the page is ---
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];
  function ago(time) {
    const seconds = Date.now() / 1000 - time;
    const unit = UNITS.find(([size]) => seconds >= size);
    return unit ? `${Math.floor(seconds / unit[0])} ${unit[1]} ago` : "just now";
  }
  const written = byId("written");
  byId("age").textContent = ` (${ago(+written.dataset.time)})`;
  for (const cell of all("td.age")) {
    cell.title = `${cell.textContent} UTC`;
    cell.textContent = ago(+cell.dataset.v);
  }
})();
