// ---- scales ---------------------------------------------------------------------------------

function niceStep(span, wanted) {
  const rough = span / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
}

function linearTicks(low, high, wanted) {
  const step = niceStep(high - low, wanted);
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) {
    ticks.push(Number((n * step).toPrecision(12)));
  }
  return ticks;
}

function logTicks(low, high, wanted) {
  const decades = Math.log10(high / low);
  if (decades < 0.7) return linearTicks(low, high, wanted);
  const every = Math.max(1, Math.ceil(decades / wanted));
  const factors = decades < wanted / 3 ? [1, 2, 5] : decades < wanted / 2 ? [1, 3] : [1];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += every) {
    for (const factor of factors) {
      const tick = Number((factor * 10 ** power).toPrecision(6));
      if (tick >= low && tick <= high) ticks.push(tick);
    }
  }
  return ticks;
}

function makeScale(values, range, { log = false, wanted = 5, pad = 0.06 } = {}) {
  const go = log ? Math.log10 : (v) => v;
  let low = go(Math.min(...values));
  let high = go(Math.max(...values));
  const room = high > low ? (high - low) * pad : log ? 0.2 : Math.abs(high) * 0.1 || 1;
  low -= room;
  high += room;
  const back = log ? (v) => 10 ** v : (v) => v;
  const pixel = (v) => range[0] + ((go(v) - low) / (high - low)) * (range[1] - range[0]);
  const ticks = (log ? logTicks : linearTicks)(back(low), back(high), wanted);
  return { pixel, ticks, holds: (v) => go(v) >= low && go(v) <= high };
}

function usesLog(key, values) {
  if (!values.length || Math.min(...values) <= 0) return false;
  if (state.logs[key] !== undefined) return state.logs[key];
  const helps = Math.max(...values) / Math.min(...values) > 8;
  return helps && Boolean(info(key).log);
}

// ---- the chart ------------------------------------------------------------------------------

const RADIUS = { trial: 4.2, uniform: 4.8, paper: 6.4 };

function shapePath(shape, larger = 0) {
  const r = RADIUS[shape] + larger;
  if (shape === "uniform") return `M${-r} ${-r}h${2 * r}v${2 * r}h${-2 * r}z`;
  if (shape === "paper") return `M0 ${-r}L${r} 0L0 ${r}L${-r} 0z`;
  return `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
}

function pointClass(row) {
  const classes = ["point", shapeOf(row)];
  if (onFront(row)) classes.push("best");
  if (isStopped(row)) classes.push("hollow");
  return classes.join(" ");
}

function glyph(className, shape) {
  return svg(
    "svg",
    { class: "glyph", viewBox: "-8 -8 16 16", width: 16, height: 16, "aria-hidden": "true" },
    svg("path", { class: className, d: shapePath(shape, className.includes("best") ? 1 : 0) }),
  );
}

let chart = { rows: [], at: new Map() };

function drawable(row) {
  const [x, y] = [valueOf(state.x, row), valueOf(state.y, row)];
  return isNumber(x) && isNumber(y);
}

function axisScale(key, rows, range, wanted) {
  const values = rows.map((row) => valueOf(key, row));
  const log = usesLog(key, values);
  const at = (row) => scaled(key, valueOf(key, row));
  const scale = makeScale(rows.map(at), range, { log, wanted, pad: state.zoom ? 0.15 : 0.06 });
  return {
    unit: info(key).unit,
    log,
    ticks: scale.ticks,
    mark: scale.pixel,
    pixel: (row) => scale.pixel(at(row)),
    holds: (row) => (!log || at(row) > 0) && scale.holds(at(row)),
  };
}

function drawChart() {
  const plot = byId("plot");
  const rows = Array.from({ length: count }, (_, row) => row).filter(drawable);
  const hadFocus = plot.contains(document.activeElement);
  plot.replaceChildren();
  if (!rows.length) {
    chart = { rows: [], at: new Map() };
    plot.append(el("p", { class: "none" }, nothingToDraw()));
    drawLegend([]);
    byId("plot-hint").textContent = "";
    return;
  }
  const width = Math.max(plot.clientWidth, 280);
  const height = Math.round(Math.min(Math.max(width * 0.62, 300), 480));
  const box = { left: 46, right: width - 12, top: 34, bottom: height - 44 };
  const best = rows.filter(onFront);
  const framed = state.zoom && best.length ? best : rows;
  const scales = {
    x: axisScale(state.x, framed, [box.left, box.right], width < 500 ? 4 : 7),
    y: axisScale(state.y, framed, [box.bottom, box.top], 6),
  };
  const inside = rows.filter((row) => scales.x.holds(row) && scales.y.holds(row));
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    role: "group",
    "aria-label": `${longName(state.y)} against ${longName(state.x)}, one point per trial`,
    onpointermove: overChart,
    onpointerleave: () => point(-1),
    onclick: clickChart,
    onkeydown: keyInChart,
  });
  picture.append(...frameOf(box, scales), ...stepsOf(rows, scales, box));
  drawPoints(picture, inside, scales, box);
  plot.append(picture, el("div", { class: "tip", id: "tip", role: "tooltip", hidden: true }));
  drawLegend(inside);
  const outside = rows.length - inside.length;
  const unmeasured = count - rows.length;
  byId("plot-hint").textContent = [
    "Choose a point to see its layers and curves. By keyboard: ← and → go through the trials, ↑ and ↓ through the front, Enter chooses.",
    outside ? `${outside} of ${rows.length} points are outside this view.` : "",
    unmeasured ? `${unmeasured} of ${count} trials have no point: they failed, or have not been measured.` : "",
  ].join(" ").trim();
  if (hadFocus && chart.at.has(state.active)) chart.at.get(state.active).node.focus();
}

function nothingToDraw() {
  if (!count) return "The study has no trials yet.";
  const failed = columns.status.filter((status) => status === "failed").length;
  if (failed === count) return "Every trial failed; the list below says why.";
  return `No trial has both ${longName(state.x)} and ${longName(state.y)}.`;
}

function axisTitle(key, { unit, log }) {
  const aim = { maximize: "more is better", minimize: "less is better" }[goals.get(key)];
  const notes = [aim, log ? "log scale" : ""].filter(Boolean).join(", ");
  return [unit ? `${longName(key)}, ${unit}` : longName(key), notes];
}

function frameOf(box, { x, y }) {
  const parts = [];
  for (const tick of y.ticks) {
    const at = y.mark(tick);
    parts.push(
      svg("line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at }),
      svg("text", { class: "tick", x: box.left - 8, y: at + 4, "text-anchor": "end" }, written(tick)),
    );
  }
  for (const tick of x.ticks) {
    const at = x.mark(tick);
    parts.push(
      svg("line", { class: "axis", x1: at, x2: at, y1: box.bottom, y2: box.bottom + 5 }),
      svg("text", { class: "tick", x: at, y: box.bottom + 19, "text-anchor": "middle" }, written(tick)),
    );
  }
  const title = (key, scale) => {
    const [name, notes] = axisTitle(key, scale);
    return [name, notes ? svg("tspan", { class: "aim", dx: 8 }, notes) : null];
  };
  parts.push(
    svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    svg("text", { class: "title", x: 0, y: 14 }, ...title(state.y, y)),
    svg("text", { class: "title", x: box.right, y: box.bottom + 40, "text-anchor": "end" }, ...title(state.x, x)),
  );
  return parts;
}

const better = (key, one, other) => (goals.get(key) === "maximize" ? one > other : one < other);

// The outline of the front in this view; beside trial numbers, the best value so far.
function stepsOf(rows, scales, box) {
  if (!goals.has(state.y)) return [];
  const ended = rows.filter((row) => !isStopped(row));
  const corners =
    state.x === "trial" ? bestSoFar(ended) : goals.has(state.x) ? outline(ended.filter(onFront)) : [];
  if (!corners.length) return [];
  const at = (row) => [scales.x.pixel(row).toFixed(1), scales.y.pixel(row).toFixed(1)];
  const [first, ...rest] = corners.map(at);
  let path = `M${first[0]} ${first[1]}`;
  for (const [x, y] of rest) path += `H${x}V${y}`;
  const clip = svg("clipPath", { id: "inside" }, svg("rect", {
    x: box.left,
    y: box.top - 8,
    width: box.right - box.left,
    height: box.bottom - box.top + 8,
  }));
  const end = state.x === "trial" || goals.get(state.x) === "minimize" ? box.right : box.left;
  const line = svg("path", { class: "steps", d: path });
  const tail = svg("path", { class: "steps faint", d: `M${(rest.length ? rest[rest.length - 1] : first).join(" ")}H${end}` });
  return [clip, svg("g", { "clip-path": "url(#inside)" }, tail, line)];
}

function bestSoFar(rows) {
  const kept = [];
  for (const row of [...rows].sort((a, b) => valueOf("trial", a) - valueOf("trial", b))) {
    const last = kept[kept.length - 1];
    if (last === undefined || better(state.y, valueOf(state.y, row), valueOf(state.y, last))) kept.push(row);
  }
  return kept;
}

function outline(members) {
  const sign = goals.get(state.x) === "maximize" ? -1 : 1;
  const order = [...members].sort((a, b) => {
    const apart = sign * (valueOf(state.x, a) - valueOf(state.x, b));
    if (apart) return apart;
    return better(state.y, valueOf(state.y, a), valueOf(state.y, b)) ? -1 : 1;
  });
  const kept = [];
  for (const row of order) {
    const last = kept[kept.length - 1];
    if (last === undefined || better(state.y, valueOf(state.y, row), valueOf(state.y, last))) kept.push(row);
  }
  return kept;
}

function drawPoints(picture, rows, scales, box) {
  const weight = (row) => (onFront(row) ? 2 : 0) + (shapeOf(row) === "trial" ? 0 : 1);
  const ordered = [...rows].sort((a, b) => weight(a) - weight(b) || a - b);
  chart = { rows: [], at: new Map() };
  const halo = svg("circle", { class: "halo", r: 11, visibility: "hidden" });
  const ring = svg("circle", { class: "ring", r: 9.5, visibility: "hidden" });
  picture.append(halo);
  for (const row of ordered) {
    const [x, y] = [scales.x.pixel(row), scales.y.pixel(row)];
    const node = svg("path", {
      class: pointClass(row),
      d: shapePath(shapeOf(row), onFront(row) ? 1 : 0),
      transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`,
      tabindex: -1,
      role: "button",
      "aria-label": spoken(row),
      "aria-pressed": String(row === state.chosen),
      "data-row": row,
      onfocus: () => point(row),
      onblur: () => point(-1),
    });
    chart.at.set(row, { x, y, node });
    picture.append(node);
  }
  picture.append(ring, ...labelsOf(ordered, box));
  chart.rows = [...rows].sort((a, b) => chart.at.get(a).x - chart.at.get(b).x || a - b);
  chart.halo = halo;
  chart.ring = ring;
  const entry = [state.active, state.chosen, chart.rows.find(onFront), chart.rows[0]];
  enterAt(entry.find((row) => chart.at.has(row)));
  showRing();
}

// Names beside the best trial of each uniform width and of the paper, where there is room.
function labelsOf(rows, box) {
  const nameAt = (row) => (shapeOf(row) === "paper" ? sourceOf(row) : `${data.widths[row]} bit`);
  const named = new Map();
  for (const row of rows.filter((r) => shapeOf(r) !== "trial")) {
    const other = named.get(nameAt(row));
    const ahead = other === undefined || better(state.y, valueOf(state.y, row), valueOf(state.y, other));
    if (ahead) named.set(nameAt(row), row);
  }
  const labels = [];
  const occupied = [];
  for (const [text, row] of named) {
    const { x, y } = chart.at.get(row);
    const long = 14 + text.length * 7;
    const left = x + long > box.right;
    const spot = { from: left ? x - long : x, to: left ? x : x + long, y };
    if (occupied.some((t) => Math.abs(t.y - y) < 14 && t.from < spot.to && spot.from < t.to)) continue;
    occupied.push(spot);
    labels.push(svg("text", { class: "name", x: left ? x - 10 : x + 10, y: y + (onFront(row) ? 18 : 4), "text-anchor": left ? "end" : "start" }, text));
  }
  return labels;
}

function enterAt(row) {
  for (const { node } of chart.at.values()) node.setAttribute("tabindex", -1);
  if (chart.at.has(row)) chart.at.get(row).node.setAttribute("tabindex", 0);
}

function showRing() {
  if (!chart.ring) return;
  const spot = chart.at.get(state.chosen);
  chart.ring.setAttribute("visibility", spot ? "visible" : "hidden");
  if (spot) {
    chart.ring.setAttribute("cx", spot.x);
    chart.ring.setAttribute("cy", spot.y);
  }
  for (const [row, { node }] of chart.at) node.setAttribute("aria-pressed", String(row === state.chosen));
}

function drawLegend(rows) {
  const kinds = [
    ["On the front", "point trial best", "trial", (row) => onFront(row) && shapeOf(row) === "trial"],
    ["Searched", "point trial", "trial", (row) => !onFront(row) && !isStopped(row) && shapeOf(row) === "trial"],
    ["Uniform bits", "point uniform", "uniform", (row) => shapeOf(row) === "uniform"],
    ["The paper's schedule", "point paper", "paper", (row) => shapeOf(row) === "paper"],
    ["Stopped early or running", "point trial hollow", "trial", isStopped],
  ];
  const shown = kinds.filter(([, , , holds]) => rows.some(holds));
  byId("legend").replaceChildren(
    ...shown.map(([label, name, shape]) => el("li", {}, glyph(name, shape), label)),
  );
}
