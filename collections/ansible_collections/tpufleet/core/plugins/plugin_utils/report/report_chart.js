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
    const unit = SIZES.find(([size]) => Math.abs(value) >= size);
    return unit ? `${+(value / unit[0]).toPrecision(4)}${unit[1]}` : `${+value.toPrecision(4)}`;
  }
  const percent = (value) => `${+(100 * value).toPrecision(3)} %`;
  const formatInteger = (value) => Math.round(value).toLocaleString("en");

  // --- Elements ---
  function createNode(namespace, name, attributes, ...children) {
    const element = namespace
      ? document.createElementNS(namespace, name)
      : document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }
  const html = (name, attributes, ...children) => createNode("", name, attributes, ...children);
  const svg = (name, attributes, ...children) => createNode(SVG, name, attributes, ...children);

  // --- Scales ---
  /** Return at most ``maxTicks`` ticks at a distance of 1, 2 or 5 times a power of ten. */
  function roundTicks(low, high, maxTicks) {
    if (!(high > low)) return [low];
    const rough = (high - low) / Math.max(maxTicks - 1, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const steps = [1, 2, 5, 10].map((digit) => digit * power);
    const step = steps.find((size) => size >= rough * (1 - 1e-9));
    const ticks = [];
    for (let n = Math.ceil(low / step - 1e-9); n <= Math.floor(high / step + 1e-9); n++)
      ticks.push(+(n * step).toPrecision(12));
    return ticks;
  }
  /** Return about ``maxTicks`` round ticks, at least three if possible. */
  function linearTicks(low, high, maxTicks) {
    let ticks = [];
    for (let count = maxTicks; ticks.length < 3 && count < maxTicks + 4; count++)
      ticks = roundTicks(low, high, count);
    return ticks;
  }
  /** Return at most ``maxTicks`` ticks of a logarithmic axis: as many per decade as fit. */
  function logTicks(low, high, maxTicks) {
    const from = Math.floor(Math.log10(low));
    const count = Math.ceil(Math.log10(high)) - from + 1;
    const powers = Array.from({ length: count }, (_, index) => from + index);
    let ticks = [];
    for (const digits of [[1, 1.5, 2, 3, 4, 5, 7], [1, 2, 5], [1]]) {
      ticks = powers.flatMap((power) => digits.map((digit) => +`${digit}e${power}`));
      ticks = ticks.filter((tick) => tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9));
      if (ticks.length <= maxTicks) break;
    }
    ticks = ticks.filter((_, index) => index % Math.ceil(ticks.length / maxTicks || 1) === 0);
    return ticks.length > 1 ? ticks : roundTicks(low, high, maxTicks);
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
    let [minX, maxX, minY, maxY] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { x, y } of series)
      x.forEach((step, index) => {
        if (!canShow(y[index], log)) return;
        [minX, maxX] = [Math.min(minX, step), Math.max(maxX, step)];
        [minY, maxY] = [Math.min(minY, y[index]), Math.max(maxY, y[index])];
      });
    if (log) return { minX, maxX, minY: minY / 1.05, maxY: maxY * 1.05 };
    if (isSteady) minY = Math.min(minY, maxY * 0.8);
    const margin = (maxY - minY) * 0.05 || Math.abs(maxY) * 0.05 || 1;
    const bottom = minY >= 0 ? Math.max(0, minY - margin) : minY - margin;
    return { minX, maxX, minY: bottom, maxY: maxY + margin };
  }
  /** Return the path of a curve, broken at gaps and at values that the axis can't show. */
  function pathOf({ x: steps, y: values, gaps }, x, y, log) {
    const segments = [];
    let gap = 0;
    let isOpen = false;
    steps.forEach((step, index) => {
      const before = gap;
      while (gap < gaps.length && gaps[gap] < step) gap++;
      isOpen = isOpen && gap === before;
      if (canShow(values[index], log)) {
        const point = `${x(step).toFixed(1)} ${y(values[index]).toFixed(1)}`;
        if (isOpen) segments.at(-1).push(point);
        else segments.push([point]);
      }
      isOpen = canShow(values[index], log);
    });
    // A single point is a line of length 0, which the round cap shows as a dot.
    return segments
      .map((points) => `M${points.join("L")}${points.length > 1 ? "" : `L${points}`}`)
      .join("");
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
   * A series has name, x, y, gaps (values of x at which its line is broken), style (CSS classes)
   * and dots (whether to mark its points). ``text`` formats a value, ``starts`` are attempts with
   * their first steps. ``onPoint`` is called with the values below the pointer, and with null when
   * the pointer leaves the chart; without ``onPoint`` the caption shows these values.
   */
  function draw(figure, options) {
    const { title, unit, text, label, series, starts = [], log, isSteady, height, onPoint } =
      options;
    const drawn = series.filter((curve) => curve.y.some((value) => canShow(value, log)));
    figure.replaceChildren();
    if (!drawn.length) return false;
    const width = Math.max(figure.clientWidth, 240);
    const right = width - RIGHT;
    const bottom = height - BOTTOM;
    const { minX, maxX, minY, maxY } = rangeOf(drawn, log, isSteady);
    const x = scale(minX, maxX, LEFT, right);
    const y = scale(minY, maxY, bottom, TOP, log);
    const ends = drawn.map(
      (curve) =>
        `${onPoint ? `${curve.name} ` : ""}from ${text(curve.y[0])} to ${text(curve.y.at(-1))}`,
    );
    const picture = svg("svg", {
      role: "img",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      "aria-label": `${title} by ${unit}: ${ends.slice(0, 4).join("; ")}`,
    });
    const put = (...node) => picture.append(svg(...node));

    for (const tick of log ? logTicks(minY, maxY, 7) : linearTicks(minY, maxY, 6)) {
      const at = y(tick).toFixed(1);
      put("path", { class: "grid", d: `M${LEFT} ${at}H${right}` });
      const name = text === percent ? percent(tick) : si(tick);
      put("text", { class: "end", x: LEFT - 7, y: at, dy: 4 }, name);
    }
    const maxTicks = Math.max(3, Math.min(9, Math.floor(width / 90)));
    for (const tick of linearTicks(minX, maxX, maxTicks)) {
      const at = Math.min(x(tick), right - 8).toFixed(1);
      put("text", { class: "middle", x: at, y: bottom + 15 }, si(tick));
    }
    put("text", { class: "middle", x: (LEFT + right) / 2, y: height - 5 }, unit);
    const rotation = `translate(11 ${(TOP + bottom) / 2}) rotate(-90)`;
    if (label) put("text", { class: "middle", transform: rotation }, label);
    let lastLabelX = -Infinity;
    for (const [attempt, step] of starts) {
      const at = x(Math.min(Math.max(step, minX), maxX));
      const name = svg("title", {}, `attempt ${attempt}, from step ${formatInteger(step)}`);
      put("path", { class: "start", d: `M${at.toFixed(1)} ${TOP}V${bottom}` }, name);
      if (at - lastLabelX < 14) continue;
      lastLabelX = at;
      put("text", { x: (at + 3).toFixed(1), y: TOP + 9 }, String(attempt));
    }
    for (const curve of drawn) {
      put("path", { class: `curve ${curve.style}`, d: pathOf(curve, x, y, log) });
      if (!curve.dots || curve.x.length > width / 14) continue;
      curve.x.forEach((step, index) => {
        if (!canShow(curve.y[index], log)) return;
        put("circle", { class: curve.style, cx: x(step), cy: y(curve.y[index]), r: 2.5 });
      });
    }

    const caption = html("figcaption", {}, html("b", {}, title));
    if (drawn.length > 1 && !onPoint)
      for (const curve of drawn) caption.append(html("span", {}, keyOf(curve.style), curve.name));
    const output = html("output", {});
    caption.append(output);
    const cursor = svg("path", { class: "cursor" });
    picture.append(cursor);
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const pixel = (event.clientX - box.left) * (width / box.width);
      const share = Math.min(Math.max((pixel - LEFT) / (right - LEFT), 0), 1);
      const pointedX = minX + share * (maxX - minX);
      // Without onPoint the chart has one run: move the cursor to the nearest of its points.
      const at = onPoint ? pointedX : drawn[0].x[nearest(drawn[0].x, pointedX)];
      const values = drawn.map((curve) => text(curve.y[nearest(curve.x, at)]));
      const position = unit === "step" ? `step ${formatInteger(at)}` : `${at.toPrecision(3)} h`;
      cursor.setAttribute("d", `M${x(at).toFixed(1)} ${TOP}V${bottom}`);
      output.textContent = onPoint ? position : `${position}: ${values.join(" · ")}`;
      if (onPoint) onPoint(drawn.map((curve, index) => [curve, values[index]]));
    });
    picture.addEventListener("pointerleave", () => {
      cursor.removeAttribute("d");
      output.textContent = "";
      if (onPoint) onPoint(null);
    });
    figure.append(caption, picture);
    return true;
  }
  return { draw, html, keyOf, firstFrom, si, percent };
})();
