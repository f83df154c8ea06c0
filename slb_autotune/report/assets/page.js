"use strict";
(() => {
  // ---- theme: applied before the page is drawn ------------------------------------------------

  const STORE = "slb-autotune-theme";
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");

  function remembered() {
    try {
      return localStorage.getItem(STORE);
    } catch {
      return null;
    }
  }

  function remember(theme) {
    try {
      localStorage.setItem(STORE, theme);
    } catch {
      // Where storage is not allowed the choice lasts as long as the page.
    }
  }

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

  if (["dark", "light"].includes(remembered())) root.dataset.theme = remembered();

  function startTheme() {
    const button = document.getElementById("theme");
    const show = () => button.setAttribute("aria-pressed", String(isDark()));
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      remember(root.dataset.theme);
      show();
    });
    system.addEventListener("change", show);
    show();
  }

  // ---- small helpers: text goes in as text, never as HTML -------------------------------------

  const SVG = "http://www.w3.org/2000/svg";

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value === true) node.setAttribute(name, "");
      else if (value !== false && value != null) node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child != null));
    return node;
  }

  const el = (tag, attributes = {}, ...children) =>
    fill(document.createElement(tag), attributes, children);
  const svg = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS(SVG, tag), attributes, children);
  const byId = (id) => document.getElementById(id);
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const say = (text) => {
    byId("said").textContent = text;
  };

  // ---- columns: their names, units and digits -------------------------------------------------

  const COLUMNS = {
    trial: { label: "Trial", digits: 0 },
    study: { label: "Study" },
    average_weight_bits: { label: "Mean bits", long: "Mean bits of a weight", decimals: 2 },
    weight_bits: { label: "Weight bits" },
    activation_bits: { label: "Activation bits" },
    schedule: { label: "Schedule" },
    T_s: { label: "T_s", long: "Start temperature T_s", log: true },
    T_e: { label: "T_e", long: "End temperature T_e", log: true },
    lr: { label: "lr", long: "Learning rate", log: true },
    source: { label: "Source" },
    status: { label: "Status" },
    on_front: { label: "Front" },
    reason: { label: "Reason" },
    val_accuracy: { label: "Val. accuracy", long: "Validation accuracy", unit: "%", decimals: 2 },
    val_accuracy_top5: { label: "Val. top-5", long: "Validation top-5 accuracy", unit: "%", decimals: 2 },
    val_psnr: { label: "Val. PSNR", long: "Validation PSNR", unit: "dB", decimals: 2 },
    val_loss: { label: "Val. loss", long: "Validation loss", digits: 4 },
    test_accuracy: { label: "Test accuracy", unit: "%", decimals: 2 },
    test_accuracy_top5: { label: "Test top-5", long: "Test top-5 accuracy", unit: "%", decimals: 2 },
    test_psnr: { label: "Test PSNR", unit: "dB", decimals: 2 },
    size_bytes: { label: "Size", unit: "bytes", scaled: ["bytes", "kB", "MB", "GB"], decimals: 0 },
    bitops: { label: "Bit-operations", scaled: ["", "thousand", "million", "billion", "trillion"], digits: 4 },
    quantization_gap: { label: "Gap", long: "Quantisation gap" },
    frozen_fraction: { label: "Frozen", long: "Frozen share of weights" },
    flip_rate: { label: "Flip rate" },
    seconds: { label: "Time", long: "Training time", unit: "s", log: true },
    epochs: { label: "Epochs" },
    epochs_spent: { label: "Epochs spent" },
    batch_size: { label: "Batch" },
    train_images: { label: "Training images" },
    seed: { label: "Seed" },
    network: { label: "Network" },
    width: { label: "Width" },
    data: { label: "Data" },
    method: { label: "Method" },
    norm: { label: "Norm" },
    run_id: { label: "Run" },
    version: { label: "Version" },
    machine: { label: "Machine" },
    device: { label: "Device" },
    command: { label: "Command" },
  };
  const ALIASES = { accuracy: "val_accuracy", psnr: "val_psnr", size: "size_bytes", front: "on_front" };
  const AXES = ["trial", "average_weight_bits", "T_s", "T_e", "lr", "quantization_gap", "seconds"];
  const NEVER_SHARED = ["trial", "on_front", "status", "reason", "command", "run_id", "study", "source"];

  const info = (key) => COLUMNS[key] || { label: key.replace("weight_bits/", "bits ") };
  const longName = (key) => info(key).long || info(key).label;

  function written(value, { decimals, digits = 4 } = {}) {
    if (decimals !== undefined) {
      return value.toLocaleString("en-US", {
        minimumFractionDigits: decimals,
        maximumFractionDigits: decimals,
      });
    }
    const size = Math.abs(value);
    if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en-US");
    if (size !== 0 && (size < 1e-4 || size >= 1e7)) {
      const [base, power] = value.toExponential(Math.max(digits - 2, 1)).split("e");
      return `${Number(base)}e${Number(power)}`;
    }
    return value.toLocaleString("en-US", { maximumSignificantDigits: Math.max(digits, 1) });
  }

  function cellText(key, value) {
    if (value == null || value === "") return "–";
    if (key === "on_front") return value ? "yes" : "–";
    if (key === "trial") return String(value);
    return isNumber(value) ? written(value, info(key)) : String(value);
  }

  function withUnit(key, value) {
    const unit = info(key).unit;
    const text = cellText(key, value);
    return value == null || !unit ? text : `${text}\u00a0${unit}`;
  }

  // ---- the study ------------------------------------------------------------------------------

  let data;
  let goals;
  let count;
  let columns;
  let offsets;
  let shapes;
  const state = { chosen: -1, active: -1, zoom: false, logs: {}, x: "", y: "", sort: {}, shown: [] };

  const valueOf = (key, row) => (columns[key] ? columns[key][row] : null);
  const onFront = (row) => Boolean(valueOf("on_front", row));
  const isStopped = (row) => ["stopped", "running"].includes(valueOf("status", row));

  const sourceOf = (row) => String(valueOf("source", row) || "");

  // The one width of all weights, 0 where widths are mixed, null where nothing is known.
  function widthOf(row) {
    const widths = new Set((data.bits[row] || []).filter((bits) => bits != null));
    if (widths.size) return widths.size === 1 ? [...widths][0] : 0;
    const word = valueOf("weight_bits", row);
    return word === "mixed" ? 0 : Number(word) || null;
  }

  // Where no trial mixes widths and none was proposed for its width, uniform ones are all there is.
  function readShapes() {
    const rows = Array.from({ length: count }, (_, row) => row);
    const told = rows.some((row) => widthOf(row) === 0 || sourceOf(row).startsWith("uniform"));
    shapes = rows.map((row) => {
      if (sourceOf(row).startsWith("paper")) return "paper";
      return told && widthOf(row) && widthOf(row) !== 32 ? "uniform" : "searched";
    });
  }

  const shapeOf = (row) => shapes[row];

  function nameOf(row) {
    const trial = valueOf("trial", row);
    const name = trial == null ? `run ${row + 1}` : `Trial ${trial}`;
    const several = new Set(columns.study).size > 1;
    return several ? `${name} of ${valueOf("study", row)}` : name;
  }

  function readData() {
    data = JSON.parse(byId("data").textContent);
    goals = new Map(data.objectives);
    count = data.count;
    columns = { ...data.runs, ...data.params };
    offsets = [0];
    for (const size of data.epoch_counts) offsets.push(offsets[offsets.length - 1] + size);
    readShapes();
    const first = [...goals.keys()].slice(0, 2);
    const y = first.find((key) => goals.get(key) === "maximize") || first[0];
    state.y = y;
    state.x = first.find((key) => key !== y) || "trial";
    state.sort = { key: first[0], down: goals.get(first[0]) === "maximize" };
  }

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
    const place = (v) => range[0] + ((go(v) - low) / (high - low)) * (range[1] - range[0]);
    const ticks = (log ? logTicks : linearTicks)(back(low), back(high), wanted);
    return { place, ticks, holds: (v) => go(v) >= low && go(v) <= high };
  }

  function unitOf(key, largest) {
    const { scaled, unit = "" } = info(key);
    if (!scaled) return { factor: 1, unit };
    const steps = Math.min(scaled.length - 1, Math.floor(Math.log10(Math.max(largest, 1)) / 3));
    return { factor: 1000 ** steps, unit: scaled[steps] };
  }

  function usesLog(key, values) {
    if (!values.length || Math.min(...values) <= 0) return false;
    if (state.logs[key] !== undefined) return state.logs[key];
    const helps = Math.max(...values) / Math.min(...values) > 8;
    return helps && Boolean(info(key).log || info(key).scaled);
  }

  // ---- the chart ------------------------------------------------------------------------------

  const RADIUS = { searched: 4.2, uniform: 4.8, paper: 6.4 };

  function shapePath(shape, larger = 0) {
    const r = RADIUS[shape] + larger;
    if (shape === "uniform") return `M${-r} ${-r}h${2 * r}v${2 * r}h${-2 * r}z`;
    if (shape === "paper") return `M0 ${-r}L${r} 0L0 ${r}L${-r} 0z`;
    return `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
  }

  function pointClass(row) {
    const words = ["point", shapeOf(row)];
    if (onFront(row)) words.push("best");
    if (isStopped(row)) words.push("hollow");
    return words.join(" ");
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
    const { factor, unit } = unitOf(key, Math.max(...values));
    const log = usesLog(key, values);
    const scaled = values.map((value) => value / factor);
    const scale = makeScale(scaled, range, { log, wanted, pad: state.zoom ? 0.15 : 0.06 });
    const at = (row) => valueOf(key, row) / factor;
    return {
      unit,
      log,
      ticks: scale.ticks,
      mark: scale.place,
      place: (row) => scale.place(at(row)),
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
      "aria-label": `${longName(state.y)} against ${longName(state.x)}, a point a trial`,
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
    const at = (row) => [scales.x.place(row).toFixed(1), scales.y.place(row).toFixed(1)];
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
    const weight = (row) => (onFront(row) ? 2 : 0) + (shapeOf(row) === "searched" ? 0 : 1);
    const ordered = [...rows].sort((a, b) => weight(a) - weight(b) || a - b);
    chart = { rows: [], at: new Map() };
    const halo = svg("circle", { class: "halo", r: 11, visibility: "hidden" });
    const ring = svg("circle", { class: "ring", r: 9.5, visibility: "hidden" });
    picture.append(halo);
    for (const row of ordered) {
      const [x, y] = [scales.x.place(row), scales.y.place(row)];
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
    const nameAt = (row) => (shapeOf(row) === "paper" ? sourceOf(row) : `${widthOf(row)} bit`);
    const named = new Map();
    for (const row of rows.filter((r) => shapeOf(r) !== "searched")) {
      const other = named.get(nameAt(row));
      const ahead = other === undefined || better(state.y, valueOf(state.y, row), valueOf(state.y, other));
      if (ahead) named.set(nameAt(row), row);
    }
    const labels = [];
    const taken = [];
    for (const [text, row] of named) {
      const { x, y } = chart.at.get(row);
      const long = 14 + text.length * 7;
      const left = x + long > box.right;
      const spot = { from: left ? x - long : x, to: left ? x : x + long, y };
      if (taken.some((t) => Math.abs(t.y - y) < 14 && t.from < spot.to && spot.from < t.to)) continue;
      taken.push(spot);
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
      ["On the front", "point searched best", "searched", (row) => onFront(row) && shapeOf(row) === "searched"],
      ["Searched", "point searched", "searched", (row) => !onFront(row) && !isStopped(row) && shapeOf(row) === "searched"],
      ["Uniform bits", "point uniform", "uniform", (row) => shapeOf(row) === "uniform"],
      ["The paper's schedule", "point paper", "paper", (row) => shapeOf(row) === "paper"],
      ["Stopped early or running", "point searched hollow", "searched", isStopped],
    ];
    const shown = kinds.filter(([, , , holds]) => rows.some(holds));
    byId("legend").replaceChildren(
      ...shown.map(([label, name, shape]) => el("li", {}, glyph(name, shape), label)),
    );
  }

  // ---- pointing and choosing in the chart -----------------------------------------------------

  const REACH = 26;

  function nearestTo(event) {
    const picture = event.currentTarget;
    const frame = picture.getBoundingClientRect();
    const zoom = picture.viewBox.baseVal.width / frame.width;
    const [x, y] = [(event.clientX - frame.left) * zoom, (event.clientY - frame.top) * zoom];
    let best = -1;
    let least = REACH ** 2;
    for (const [row, spot] of chart.at) {
      const far = (spot.x - x) ** 2 + (spot.y - y) ** 2;
      if (far <= least) [best, least] = [row, far];
    }
    return best;
  }

  const sameSpot = (row) => {
    const { x, y } = chart.at.get(row);
    return [...chart.at.keys()].filter((other) => {
      const spot = chart.at.get(other);
      return Math.hypot(spot.x - x, spot.y - y) < 1;
    });
  };

  function overChart(event) {
    if (event.pointerType !== "touch") point(nearestTo(event));
  }

  // A second click on points that lie on each other goes on to the next of them.
  function clickChart(event) {
    const row = nearestTo(event);
    if (row < 0) return;
    const together = sameSpot(row);
    const next = together.includes(state.chosen)
      ? together[(together.indexOf(state.chosen) + 1) % together.length]
      : row;
    choose(next, "chart");
    point(next);
  }

  function keyInChart(event) {
    const row = Number(event.target.dataset.row);
    if (!chart.at.has(row)) return;
    const best = chart.rows.filter((r) => onFront(r) || r === row);
    const move = (list, by) => list[Math.min(Math.max(list.indexOf(row) + by, 0), list.length - 1)];
    const aims = {
      ArrowLeft: () => move(chart.rows, -1),
      ArrowRight: () => move(chart.rows, 1),
      ArrowUp: () => move(best, 1),
      ArrowDown: () => move(best, -1),
      Home: () => chart.rows[0],
      End: () => chart.rows[chart.rows.length - 1],
    };
    if (event.key === "Escape") point(-1);
    else if (event.key === "Enter" || event.key === " ") choose(row, "chart");
    else if (aims[event.key]) chart.at.get(aims[event.key]()).node.focus();
    else return;
    event.preventDefault();
  }

  function point(row) {
    if (row >= 0) {
      state.active = row;
      enterAt(row);
    }
    const tip = byId("tip");
    const spot = chart.at.get(row);
    if (!tip) return;
    tip.hidden = !spot;
    chart.halo.setAttribute("visibility", spot ? "visible" : "hidden");
    if (!spot) return;
    chart.halo.setAttribute("cx", spot.x);
    chart.halo.setAttribute("cy", spot.y);
    tip.replaceChildren(...tipContent(row));
    const plot = byId("plot");
    const zoom = plot.clientWidth / plot.querySelector("svg").viewBox.baseVal.width;
    const [x, y] = [spot.x * zoom, spot.y * zoom];
    const right = x + 16 + tip.offsetWidth <= plot.clientWidth;
    const left = right ? x + 16 : x - 16 - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(left, plot.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${Math.max(0, y - tip.offsetHeight - 10)}px`;
  }

  function tipContent(row) {
    const lines = [...goals.keys()].map((key) => [longName(key), withUnit(key, valueOf(key, row))]);
    lines.push(...settingsOf(row));
    const more = sameSpot(row).length - 1;
    return [
      el("strong", {}, nameOf(row)),
      el("span", { class: "kind" }, kindOf(row)),
      el("dl", {}, ...lines.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)])),
      more ? el("span", { class: "kind" }, `${more} more at this place: click again`) : null,
    ].filter(Boolean);
  }

  function kindOf(row) {
    const words = [onFront(row) ? "on the front" : "", valueOf("status", row), valueOf("source", row)];
    return words.filter(Boolean).join(" · ");
  }

  function settingsOf(row) {
    const lines = [];
    const [start, end] = [valueOf("T_s", row), valueOf("T_e", row)];
    if (valueOf("schedule", row)) lines.push(["Schedule", valueOf("schedule", row)]);
    if (start != null && end != null) lines.push(["T_s → T_e", `${written(start)} → ${written(end)}`]);
    if (valueOf("lr", row) != null) lines.push(["Learning rate", written(valueOf("lr", row))]);
    const bits = [valueOf("weight_bits", row), valueOf("activation_bits", row)];
    if (bits[0]) lines.push(["Weight / activation bits", bits.map((b) => b || "–").join(" / ")]);
    return lines;
  }

  function spoken(row) {
    const values = [...goals.keys()].map((key) => `${longName(key)} ${withUnit(key, valueOf(key, row))}`);
    return [nameOf(row), kindOf(row), ...values].join(", ");
  }

  function choose(row, from) {
    state.chosen = row;
    showRing();
    drawDetails(row);
    markRow(row, from === "chart");
    if (from) say(`${nameOf(row)} chosen.`);
    if (from === "table") showDetailsIfAway();
  }

  function showDetailsIfAway() {
    const frame = byId("details").getBoundingClientRect();
    if (frame.bottom < 80 || frame.top > innerHeight - 80) byId("details").scrollIntoView({ block: "start" });
  }

  function startAxes() {
    const numbers = Object.keys(columns).filter((key) => columns[key].some(isNumber));
    const others = AXES.filter((key) => numbers.includes(key) && !goals.has(key));
    const option = (key, axis) => el("option", { value: key, selected: state[axis] === key }, longName(key));
    const pick = (axis, name) => el("label", {}, name,
      el("select", { id: `axis-${axis}`, onchange: (event) => {
        state[axis] = event.target.value;
        logs.forEach((refresh) => refresh());
        drawChart();
      } },
      el("optgroup", { label: "Objectives" }, ...[...goals.keys()].map((key) => option(key, axis))),
      el("optgroup", { label: "Also recorded" }, ...others.map((key) => option(key, axis)))));
    const logs = [];
    const log = (axis) => {
      const input = el("input", { type: "checkbox", id: `log-${axis}`, onchange: (event) => {
        state.logs[state[axis]] = event.target.checked;
        drawChart();
      } });
      logs.push(() => {
        const values = (columns[state[axis]] || []).filter(isNumber);
        input.disabled = !values.length || Math.min(...values) <= 0;
        input.checked = usesLog(state[axis], values);
      });
      return el("label", { class: "check" }, input, "log");
    };
    const zoom = el("input", { type: "checkbox", id: "zoom", onchange: (event) => {
      state.zoom = event.target.checked;
      drawChart();
    } });
    byId("axes").replaceChildren(
      el("span", { class: "pair" }, pick("y", "Up"), log("y")),
      el("span", { class: "pair" }, pick("x", "Across"), log("x")),
      el("label", { class: "check" }, zoom, "Zoom to the front"),
    );
    logs.forEach((refresh) => refresh());
    let width = 0;
    new ResizeObserver(([entry]) => {
      if (Math.abs(entry.contentRect.width - width) < 1) return;
      width = entry.contentRect.width;
      drawChart();
    }).observe(byId("plot"));
  }

  // ---- the chosen trial -----------------------------------------------------------------------

  function drawDetails(row) {
    const panel = byId("details");
    if (row < 0) {
      panel.replaceChildren(el("p", { class: "hint" }, count
        ? "Choose a trial in the chart or in the list to see its layers and curves."
        : "Trials will be shown here."));
      return;
    }
    const scores = [...goals.keys()].map((key) => [longName(key), withUnit(key, valueOf(key, row))]);
    const list = (lines) =>
      el("dl", {}, ...lines.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
    const reason = valueOf("reason", row);
    const command = valueOf("command", row);
    panel.replaceChildren(...[
      el("h3", {}, glyph(pointClass(row), shapeOf(row)), nameOf(row)),
      el("p", { class: "kind" }, kindOf(row)),
      reason ? el("p", { class: "reason" }, reason) : null,
      list([...scores, ...settingsOf(row)]),
      ...bitsOf(row),
      ...curvesOf(row),
      command ? commandBox(command) : null,
      el("p", {}, el("button", { type: "button", class: "quiet", onclick: () => goToRow(row) }, "Show in the list")),
    ].filter(Boolean));
  }

  function bitsOf(row) {
    const bits = data.bits[row];
    if (!bits) return [];
    const layers = data.layers.map((name, at) => [name, bits[at]]).filter(([, b]) => b != null);
    const [width, tall] = [320, 44];
    const step = width / layers.length;
    const most = Math.max(...layers.map(([, b]) => b), 4);
    const strip = svg("svg", { viewBox: `0 0 ${width} ${tall + 34}`, role: "img", "aria-label": `Weight bits: ${layers.map(([name, b]) => `${name} ${b}`).join(", ")}` });
    layers.forEach(([name, b], at) => {
      const high = Math.max((b / most) * tall, 2);
      const bar = svg("rect", { class: "bits", x: at * step + step * 0.1, width: step * 0.8, y: 14 + tall - high, height: high });
      const group = svg("g", {}, svg("title", {}, `${name}: ${b} bit`), bar);
      if (step > 9) group.append(svg("text", { class: "tick", x: (at + 0.5) * step, y: 10 + tall - high, "text-anchor": "middle" }, String(b)));
      strip.append(group);
    });
    strip.append(...groupNames(layers.map(([name]) => name), step, tall + 14));
    return [el("h4", {}, "Bits per layer"), strip];
  }

  // A bracket and a name under the layers of each part of the network.
  function groupNames(names, step, y) {
    const parts = [];
    let from = 0;
    names.forEach((name, at) => {
      const part = name.split(".")[0];
      if (at + 1 < names.length && names[at + 1].split(".")[0] === part) return;
      parts.push(svg("line", { class: "axis", x1: from * step + 1, x2: (at + 1) * step - 1, y1: y + 3, y2: y + 3 }));
      if (part.length * 6.5 < (at + 1 - from) * step) {
        parts.push(svg("text", { class: "tick", x: ((from + at + 1) / 2) * step, y: y + 17, "text-anchor": "middle" }, part));
      }
      from = at + 1;
    });
    return parts;
  }

  // A line a rung; a rung that goes on where the last one stopped makes the same line longer.
  function linesOf(row, key) {
    const { epoch, rung, [key]: values } = data.epochs;
    const lines = [];
    let last = null;
    for (let at = offsets[row]; values && at < offsets[row + 1]; at += 1) {
      if (!last || (rung && rung[at] !== last.rung && epoch[at] <= last.epoch)) lines.push([]);
      last = { epoch: epoch[at], rung: rung ? rung[at] : null };
      if (isNumber(values[at])) lines[lines.length - 1].push([epoch[at], values[at]]);
    }
    return lines.filter((line) => line.length);
  }

  function curvesOf(row) {
    const quality = data.epochs.val_psnr ? "val_psnr" : "val_accuracy";
    const wanted = [
      [`${longName(quality)}, ${info(quality).unit}`, quality, false, quality === "val_accuracy" ? "val_accuracy_continuous" : ""],
      ["Temperature, log scale", "temperature", true, ""],
      ["Quantisation gap", "quantization_gap", false, ""],
    ];
    const parts = wanted.flatMap(([title, key, log, beside]) => {
      const lines = linesOf(row, key).map((line) => line.filter(([, v]) => !log || v > 0)).filter((line) => line.length);
      if (!lines.length) return [];
      const second = beside ? linesOf(row, beside).slice(-1) : [];
      return [curve(title, lines, log, second)];
    });
    if (!parts.length) return [el("p", { class: "hint" }, "No epoch of this trial is on record.")];
    const rungs = linesOf(row, "temperature").length > 1 || linesOf(row, quality).length > 1;
    const note = [
      linesOf(row, "val_accuracy_continuous").length && quality === "val_accuracy" ? "Dashed: the continuous weights W_c." : "",
      rungs ? "Pale: earlier, shorter rungs." : "",
    ].join(" ").trim();
    return [el("h4", {}, "Over epochs"), ...parts, note ? el("p", { class: "hint" }, note) : null];
  }

  function curve(title, lines, log, second) {
    const [width, height] = [320, 112];
    const box = { left: 40, right: width - 52, top: 24, bottom: height - 18 };
    const all = [...lines, ...second].flat();
    const x = makeScale(all.map(([e]) => e), [box.left, box.right], { pad: 0, wanted: 5 });
    const y = makeScale(all.map(([, v]) => v), [box.bottom, box.top], { log, wanted: 4, pad: 0.05 });
    const end = lines[lines.length - 1].slice(-1)[0];
    const picture = svg("svg", { class: "curve", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${written(end[1])} after epoch ${end[0]}` });
    picture.append(svg("text", { class: "title", x: 0, y: 12 }, title));
    for (const tick of y.ticks) {
      const at = y.place(tick);
      picture.append(
        svg("line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at }),
        svg("text", { class: "tick", x: box.left - 6, y: at + 4, "text-anchor": "end" }, written(tick)),
      );
    }
    for (const tick of x.ticks.filter(Number.isInteger)) {
      picture.append(svg("text", { class: "tick", x: x.place(tick), y: height - 4, "text-anchor": "middle" }, String(tick)));
    }
    const path = (line) => line.map(([e, v], at) => `${at ? "L" : "M"}${x.place(e).toFixed(1)} ${y.place(v).toFixed(1)}`).join("");
    for (const line of second) picture.append(svg("path", { class: "line dashed", d: path(line) }));
    lines.forEach((line, at) => {
      picture.append(svg("path", { class: at + 1 < lines.length ? "line pale" : "line", d: path(line) }));
    });
    picture.append(
      svg("circle", { class: "end", r: 3, cx: x.place(end[0]), cy: y.place(end[1]) }),
      svg("text", { class: "value", x: x.place(end[0]) + 7, y: y.place(end[1]) + 4 }, written(Number(end[1].toPrecision(3)))),
    );
    return picture;
  }

  // ---- the list of trials ---------------------------------------------------------------------

  const isConstant = (key) => count > 1 && columns[key].every((v) => v === columns[key][0]);

  function startTable() {
    const usual = ["trial", ...goals.keys(), "average_weight_bits", "schedule", "T_s", "T_e", "lr", "source", "status"];
    if ((columns.status || []).includes("failed")) usual.push("reason");
    if (new Set(columns.study).size > 1) usual.splice(1, 0, "study");
    const present = Object.keys(columns);
    const kept = ["trial", "status", "reason", ...goals.keys()];
    state.shown = usual.filter((key) => present.includes(key) && (kept.includes(key) || !isConstant(key)));
    const shared = present.filter((key) => !NEVER_SHARED.includes(key) && !goals.has(key) && isConstant(key));
    byId("same").textContent = shared.length
      ? `The same for all: ${shared.map((key) => `${info(key).label.replace(/^[A-Z](?=[a-z])/, (c) => c.toLowerCase())} ${withUnit(key, columns[key][0])}`).join(" · ")}.`
      : "";
    if (!count) {
      byId("box").replaceChildren(el("p", { class: "none" }, "The study has no trials yet."));
      return;
    }
    drawFilters();
    drawTable();
  }

  function drawFilters() {
    const statuses = [...new Set(columns.status)].sort();
    const refresh = () => applyFilter();
    byId("filters").replaceChildren(
      el("label", { class: "grow" }, "Filter",
        el("input", { type: "search", id: "filter", placeholder: "T_e>100 schedule=exp", autocomplete: "off", spellcheck: "false", oninput: refresh })),
      el("label", {}, "Status",
        el("select", { id: "status", onchange: refresh }, el("option", { value: "" }, "all"), ...statuses.map((s) => el("option", { value: s }, s)))),
      el("label", { class: "check" }, el("input", { type: "checkbox", id: "only-front", onchange: refresh }), "Front only"),
      columnMenu(),
    );
  }

  function columnMenu() {
    const choices = Object.keys(columns).filter((key) => key !== "trial").sort((a, b) => rank(a) - rank(b));
    const menu = el("details", { class: "menu" }, el("summary", {}, "Columns"),
      el("fieldset", {}, el("legend", { class: "unseen" }, "Columns of the list"),
        ...choices.map((key) => el("label", { class: "check" }, el("input", { type: "checkbox", value: key, checked: state.shown.includes(key), onchange: (event) => {
          state.shown = event.target.checked
            ? [...state.shown, key].sort((a, b) => rank(a) - rank(b))
            : state.shown.filter((other) => other !== key);
          drawTable();
        } }), longName(key)))));
    menu.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      menu.open = false;
      menu.querySelector("summary").focus();
    });
    document.addEventListener("click", (event) => {
      if (!menu.contains(event.target)) menu.open = false;
    });
    return menu;
  }

  // The order of columns: the trial, its objectives, then as in COLUMNS, then what was searched.
  function rank(key) {
    const order = ["trial", "study", ...goals.keys(), ...Object.keys(COLUMNS)];
    const at = order.indexOf(key);
    return at >= 0 ? at : order.length + Object.keys(columns).indexOf(key);
  }

  const rowNodes = [];

  function drawTable() {
    const isText = (key) => !columns[key].some(isNumber) || key === "on_front";
    const head = state.shown.map((key) => {
      const { label, unit } = info(key);
      const text = unit ? `${label}, ${unit}` : label;
      return el("th", { scope: "col", class: isText(key) ? "" : "number", "data-key": key, "data-label": text },
        el("button", { type: "button", title: key, onclick: () => sortBy(key) }, text, el("span", { class: "arrow", "aria-hidden": "true" })));
    });
    for (let row = 0; row < count; row += 1) rowNodes[row] = rowOf(row, isText);
    byId("box").replaceChildren(el("table", { id: "table" },
      el("caption", { class: "unseen" }, "All trials of the study"),
      el("thead", {}, el("tr", {}, ...head)),
      el("tbody", {}, ...rowNodes)));
    sortRows();
    applyFilter();
    markRow(state.chosen, false);
  }

  function rowOf(row, isText) {
    const cells = state.shown.map((key) => {
      const text = cellText(key, valueOf(key, row));
      if (key === "trial") {
        return el("th", { scope: "row" }, glyph(pointClass(row), shapeOf(row)),
          el("button", { type: "button", class: "plain", "aria-label": `Choose ${nameOf(row)}` }, text),
          onFront(row) ? el("span", { class: "unseen" }, "on the front") : null);
      }
      const classes = [isText(key) ? "" : "number", text === "–" ? "missing" : "", `cell-${key.replace(/\W/g, "-")}`].join(" ").trim();
      return el("td", { class: classes, title: text.length > 32 ? text : null }, text);
    });
    return el("tr", { "data-row": row, onclick: () => choose(row, "table") }, ...cells);
  }

  function sortBy(key) {
    const down = state.sort.key === key ? !state.sort.down : false;
    state.sort = { key, down };
    sortRows();
    say(`Sorted by ${info(key).label}, ${down ? "largest" : "smallest"} first.`);
  }

  function compare(a, b) {
    const [one, other] = [valueOf(state.sort.key, a), valueOf(state.sort.key, b)];
    const missing = (v) => v == null || v === "";
    if (missing(one) || missing(other)) return missing(one) - missing(other) || a - b;
    const apart = isNumber(one) && isNumber(other) ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
    return (state.sort.down ? -apart : apart) || a - b;
  }

  function sortRows() {
    const order = Array.from({ length: count }, (_, row) => row).sort(compare);
    document.querySelector("#table tbody").append(...order.map((row) => rowNodes[row]));
    for (const th of document.querySelectorAll("#table th[data-key]")) {
      const sorted = th.dataset.key === state.sort.key;
      if (sorted) th.setAttribute("aria-sort", state.sort.down ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    }
  }

  // ---- the filter: words, and rules such as T_e>100 -------------------------------------------

  function columnNamed(word) {
    const wanted = word.toLowerCase();
    const keys = Object.keys(columns);
    const aliased = ALIASES[wanted];
    return keys.find((key) => key.toLowerCase() === wanted)
      || (keys.includes(aliased) ? aliased : undefined)
      || keys.find((key) => info(key).label.toLowerCase() === wanted);
  }

  function numberIn(text) {
    const found = /^(-?[\d.,]+(?:e[-+]?\d+)?)(k|kb|m|mb|g|gb)?$/i.exec(text);
    if (!found) return null;
    const factor = { k: 1e3, m: 1e6, g: 1e9 }[(found[2] || "").charAt(0).toLowerCase()] || 1;
    const number = Number(found[1].replace(/,/g, "")) * factor;
    return Number.isFinite(number) ? number : null;
  }

  const TESTS = {
    ">": (a, b) => a > b,
    "<": (a, b) => a < b,
    ">=": (a, b) => a >= b,
    "<=": (a, b) => a <= b,
    "=": (a, b) => a === b,
    "!=": (a, b) => a !== b,
  };

  // A rule is a function of a row; what cannot be understood is told and left out.
  function ruleOf(word) {
    const found = /^([^<>=!]+)(>=|<=|!=|=|>|<)(.+)$/.exec(word);
    if (!found) {
      const wanted = word.toLowerCase();
      return { test: (row) => textOf(row).includes(wanted) };
    }
    const [, name, sign, text] = found;
    const key = columnNamed(name);
    if (!key) return { problem: `There is no column ${name}.` };
    const number = numberIn(text);
    if (number === null && !["=", "!="].includes(sign)) return { problem: `${text} is not a number.` };
    return { test: (row) => {
      const value = valueOf(key, row);
      if (value == null || value === "") return false;
      const numeric = number !== null && (isNumber(value) || Number.isFinite(Number(value)));
      if (numeric) return TESTS[sign](Number(value), number);
      return ["=", "!="].includes(sign) && TESTS[sign](cellText(key, value).toLowerCase(), text.toLowerCase());
    } };
  }

  const texts = [];
  function textOf(row) {
    texts[row] ??= Object.keys(columns).map((key) => columns[key][row]).filter((v) => typeof v === "string").join("\n").toLowerCase();
    return texts[row];
  }

  function applyFilter() {
    const words = byId("filter").value.replace(/\s*(>=|<=|!=|=|>|<)\s*/g, "$1").split(/\s+/).filter(Boolean);
    const rules = words.map(ruleOf);
    const tests = rules.map(({ test }) => test).filter(Boolean);
    const status = byId("status").value;
    if (status) tests.push((row) => valueOf("status", row) === status);
    if (byId("only-front").checked) tests.push(onFront);
    let kept = 0;
    rowNodes.forEach((node, row) => {
      const holds = tests.every((test) => test(row));
      node.classList.toggle("out", !holds);
      kept += holds;
    });
    const problems = rules.map(({ problem }) => problem).filter(Boolean);
    byId("found").textContent = [`${kept} of ${count} trials.`, ...problems].join(" ");
  }

  function markRow(row, scrolls) {
    for (const node of document.querySelectorAll("#table tr.chosen")) {
      node.classList.remove("chosen");
      node.removeAttribute("aria-current");
    }
    const node = rowNodes[row];
    if (!node) return;
    node.classList.add("chosen");
    node.setAttribute("aria-current", "true");
    if (!scrolls) return;
    const box = byId("box");
    box.scrollTop = node.offsetTop - (box.clientHeight - node.offsetHeight) / 2;
  }

  function goToRow(row) {
    markRow(row, true);
    rowNodes[row].scrollIntoView({ block: "center" });
    rowNodes[row].querySelector("button").focus({ preventScroll: true });
  }

  // ---- commands -------------------------------------------------------------------------------

  function commandBox(text) {
    const box = el("div", { class: "command" }, el("pre", { tabindex: 0 }, el("code", {}, text)));
    return addCopy(box);
  }

  function addCopy(box) {
    const code = box.querySelector("code");
    const button = el("button", { type: "button", class: "quiet copy", onclick: async () => {
      const done = await copied(code);
      button.textContent = done ? "Copied" : "Press Ctrl+C";
      say(done ? "Copied." : "The command is selected: press Ctrl+C.");
      setTimeout(() => {
        button.textContent = "Copy";
      }, 1600);
    } }, "Copy");
    box.append(button);
    return box;
  }

  // Where the clipboard is closed to the page, the text is left selected.
  async function copied(code) {
    try {
      await navigator.clipboard.writeText(code.textContent);
      return true;
    } catch {
      getSelection().selectAllChildren(code);
      return false;
    }
  }

  // ---- start ----------------------------------------------------------------------------------

  function firstChoice() {
    const rows = Array.from({ length: count }, (_, row) => row).filter((row) => onFront(row) && drawable(row));
    const key = state.y;
    return rows.reduce((best, row) => (best < 0 || better(key, valueOf(key, row), valueOf(key, best)) ? row : best), -1);
  }

  document.addEventListener("DOMContentLoaded", () => {
    startTheme();
    readData();
    startAxes();
    drawChart();
    startTable();
    const first = firstChoice();
    if (first >= 0) choose(first);
    else drawDetails(-1);
    document.querySelectorAll("#reproduce .command").forEach(addCopy);
  });
})();
