// Charts as SVG elements. Texts reach the document as text nodes and attributes, never as markup.
"use strict";
const charts = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const LEFT = 54;
  const RIGHT = 10;
  const TOP = 10;
  const BOTTOM = 36;

  // --- Formats ---
  const SIZES = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
  /** Format a number with at most four digits: 2.5, 40k, 3M. */
  function si(value) {
    const found = SIZES.find(([size]) => Math.abs(value) >= size);
    return found ? `${+(value / found[0]).toPrecision(4)}${found[1]}` : `${+value.toPrecision(4)}`;
  }
  const percent = (value) => `${+(100 * value).toPrecision(3)} %`;
  const whole = (value) => Math.round(value).toLocaleString("en");

  // --- Elements ---
  function made(space, name, attributes, ...children) {
    const element = space ? document.createElementNS(space, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }
  const html = (name, attributes, ...children) => made("", name, attributes, ...children);
  const svg = (name, attributes, ...children) => made(SVG, name, attributes, ...children);

  // --- Scales ---
  /** Return at most ``most`` ticks at a distance of 1, 2 or 5 times a power of ten. */
  function roundTicks(low, high, most) {
    if (!(high > low)) return [low];
    const rough = (high - low) / Math.max(most - 1, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const steps = [1, 2, 5, 10].map((digit) => digit * power);
    const step = steps.find((each) => each >= rough * (1 - 1e-9));
    const ticks = [];
    for (let n = Math.ceil(low / step - 1e-9); n <= Math.floor(high / step + 1e-9); n++)
      ticks.push(+(n * step).toPrecision(12));
    return ticks;
  }
  /** Return about ``most`` round ticks, at least three where that is possible. */
  function linearTicks(low, high, most) {
    let ticks = [];
    for (let count = most; ticks.length < 3 && count < most + 4; count++)
      ticks = roundTicks(low, high, count);
    return ticks;
  }
  /** Return at most ``most`` ticks of a logarithmic axis, with as many digits per decade as fit. */
  function logTicks(low, high, most) {
    const from = Math.floor(Math.log10(low));
    const count = Math.ceil(Math.log10(high)) - from + 1;
    const powers = Array.from({ length: count }, (_, place) => from + place);
    let ticks = [];
    for (const digits of [[1, 1.5, 2, 3, 4, 5, 7], [1, 2, 5], [1]]) {
      ticks = powers.flatMap((power) => digits.map((digit) => +`${digit}e${power}`));
      ticks = ticks.filter((tick) => tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9));
      if (ticks.length <= most) break;
    }
    ticks = ticks.filter((_, place) => place % Math.ceil(ticks.length / most || 1) === 0);
    return ticks.length > 1 ? ticks : roundTicks(low, high, most);
  }
  /** Return the function from values to pixels that maps low to start and high to end. */
  function scale(low, high, start, end, log) {
    const at = log ? Math.log10 : (value) => value;
    const first = at(low);
    const span = at(high) - first;
    return (value) => start + (span > 0 ? (at(value) - first) / span : 0.5) * (end - start);
  }
  /** Return the index of the first element of a sorted array that is at least the value. */
  function firstFrom(sorted, value) {
    let low = 0;
    let high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < value) low = middle + 1;
      else high = middle;
    }
    return low;
  }
  function nearest(sorted, value) {
    const after = firstFrom(sorted, value);
    const before = Math.max(after - 1, 0);
    if (after >= sorted.length) return before;
    return value - sorted[before] < sorted[after] - value ? before : after;
  }

  // --- Parts of a chart ---
  const canShow = (value, log) => !log || value > 0;

  /**
   * Return the range of all points, with a margin above and below the values. If ``isSteady``, the
   * values' range is at least a fifth of the largest value, so that noise does not fill the chart.
   */
  function rangeOf(series, log, isSteady) {
    let [left, last, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { x, y } of series)
      x.forEach((step, place) => {
        if (!canShow(y[place], log)) return;
        [left, last] = [Math.min(left, step), Math.max(last, step)];
        [low, high] = [Math.min(low, y[place]), Math.max(high, y[place])];
      });
    if (log) return { left, last, low: low / 1.05, high: high * 1.05 };
    if (isSteady) low = Math.min(low, high * 0.8);
    const margin = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
    const bottom = low >= 0 ? Math.max(0, low - margin) : low - margin;
    return { left, last, low: bottom, high: high + margin };
  }
  /** Return the path of a curve, broken at gaps and where a logarithmic axis can't show a value. */
  function pathOf({ x: steps, y: values, gaps }, x, y, log) {
    const parts = [];
    let gap = 0;
    let isOpen = false;
    steps.forEach((step, place) => {
      const before = gap;
      while (gap < gaps.length && gaps[gap] < step) gap++;
      isOpen = isOpen && gap === before;
      if (canShow(values[place], log)) {
        const point = `${x(step).toFixed(1)} ${y(values[place]).toFixed(1)}`;
        if (isOpen) parts.at(-1).push(point);
        else parts.push([point]);
      }
      isOpen = canShow(values[place], log);
    });
    // A single point is a line of length 0, which the round cap shows as a dot.
    return parts.map((part) => `M${part.join("L")}${part.length > 1 ? "" : `L${part}`}`).join("");
  }
  const keyOf = (style) =>
    svg(
      "svg",
      { class: "key", viewBox: "0 0 22 10", "aria-hidden": "true" },
      svg("path", { class: `curve ${style}`, d: "M0 5H22" }),
    );

  /**
   * Draw a chart as wide as its figure. Return whether there was anything to draw.
   *
   * A series has name, x, y, gaps (values of x where its line is broken), style (CSS classes) and
   * dots (whether to mark its points). ``text`` formats a value, ``starts`` are attempts with their first steps. ``tell`` is
   * called with the values below the pointer, and with null when the pointer leaves the chart;
   * without ``tell`` the caption shows these values.
   */
  function draw(figure, options) {
    const { title, unit, text, label, series, starts = [], log, isSteady, height, tell } = options;
    const shown = series.filter((each) => each.y.some((value) => canShow(value, log)));
    figure.replaceChildren();
    if (!shown.length) return false;
    const width = Math.max(figure.clientWidth, 240);
    const right = width - RIGHT;
    const bottom = height - BOTTOM;
    const { left, last, low, high } = rangeOf(shown, log, isSteady);
    const x = scale(left, last, LEFT, right);
    const y = scale(low, high, bottom, TOP, log);
    const ends = shown.map(
      (each) => `${tell ? `${each.name} ` : ""}from ${text(each.y[0])} to ${text(each.y.at(-1))}`,
    );
    const picture = svg("svg", {
      role: "img",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      "aria-label": `${title} by ${unit}: ${ends.slice(0, 4).join("; ")}`,
    });
    const put = (...parts) => picture.append(svg(...parts));

    for (const tick of log ? logTicks(low, high, 7) : linearTicks(low, high, 6)) {
      const at = y(tick).toFixed(1);
      put("path", { class: "grid", d: `M${LEFT} ${at}H${right}` });
      const name = text === percent ? percent(tick) : si(tick);
      put("text", { class: "end", x: LEFT - 7, y: at, dy: 4 }, name);
    }
    const most = Math.max(3, Math.min(9, Math.floor(width / 90)));
    for (const tick of linearTicks(left, last, most)) {
      const at = Math.min(x(tick), right - 8).toFixed(1);
      put("text", { class: "middle", x: at, y: bottom + 15 }, si(tick));
    }
    put("text", { class: "middle", x: (LEFT + right) / 2, y: height - 5 }, unit);
    const turned = `translate(11 ${(TOP + bottom) / 2}) rotate(-90)`;
    if (label) put("text", { class: "middle", transform: turned }, label);
    let labelled = -Infinity;
    for (const [attempt, step] of starts) {
      const at = x(Math.min(Math.max(step, left), last));
      const name = svg("title", {}, `attempt ${attempt}, from step ${whole(step)}`);
      put("path", { class: "start", d: `M${at.toFixed(1)} ${TOP}V${bottom}` }, name);
      if (at - labelled < 14) continue;
      labelled = at;
      put("text", { x: (at + 3).toFixed(1), y: TOP + 9 }, String(attempt));
    }
    for (const each of shown) {
      put("path", { class: `curve ${each.style}`, d: pathOf(each, x, y, log) });
      if (!each.dots || each.x.length > width / 14) continue;
      each.x.forEach((step, place) => {
        if (!canShow(each.y[place], log)) return;
        put("circle", { class: each.style, cx: x(step), cy: y(each.y[place]), r: 2.5 });
      });
    }

    const caption = html("figcaption", {}, html("b", {}, title));
    if (shown.length > 1 && !tell)
      for (const each of shown) caption.append(html("span", {}, keyOf(each.style), each.name));
    const output = html("output", {});
    caption.append(output);
    const cursor = svg("path", { class: "cursor" });
    picture.append(cursor);
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const pixel = (event.clientX - box.left) * (width / box.width);
      const share = Math.min(Math.max((pixel - LEFT) / (right - LEFT), 0), 1);
      const pointed = left + share * (last - left);
      // Without tell the chart has one run: move the cursor to the nearest of its points.
      const at = tell ? pointed : shown[0].x[nearest(shown[0].x, pointed)];
      const values = shown.map((each) => text(each.y[nearest(each.x, at)]));
      const where = unit === "step" ? `step ${whole(at)}` : `${at.toPrecision(3)} h`;
      cursor.setAttribute("d", `M${x(at).toFixed(1)} ${TOP}V${bottom}`);
      output.textContent = tell ? where : `${where}: ${values.join(" · ")}`;
      if (tell) tell(shown.map((each, place) => [each, values[place]]));
    });
    picture.addEventListener("pointerleave", () => {
      cursor.removeAttribute("d");
      output.textContent = "";
      if (tell) tell(null);
    });
    figure.append(caption, picture);
    return true;
  }
  return { draw, html, keyOf, firstFrom, si, percent };
})();
