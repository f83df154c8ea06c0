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

// One line per rung; a rung that continues where the last one stopped makes the same line longer.
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
  const found = data.curves.map(({ key, beside, log }) => {
    const inUnit = (name) => linesOf(row, name).map((line) => line.map(([e, v]) => [e, scaled(name, v)]));
    const lines = inUnit(key).map((line) => line.filter(([, v]) => !log || v > 0)).filter((line) => line.length);
    const second = beside ? inUnit(beside).slice(-1) : [];
    const notes = [info(key).unit, log ? "log scale" : ""].filter(Boolean);
    return { title: [longName(key), ...notes].join(", "), lines, log, second };
  }).filter(({ lines }) => lines.length);
  if (!found.length) return [el("p", { class: "hint" }, "No epoch of this trial is on record.")];
  const note = [
    found.some(({ second }) => second.length) ? "Dashed: the continuous weights W_c." : "",
    found.some(({ lines }) => lines.length > 1) ? "Pale: earlier, shorter rungs." : "",
  ].join(" ").trim();
  const parts = found.map(({ title, lines, log, second }) => curve(title, lines, log, second));
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
    const at = y.pixel(tick);
    picture.append(
      svg("line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at }),
      svg("text", { class: "tick", x: box.left - 6, y: at + 4, "text-anchor": "end" }, written(tick)),
    );
  }
  for (const tick of x.ticks.filter(Number.isInteger)) {
    picture.append(svg("text", { class: "tick", x: x.pixel(tick), y: height - 4, "text-anchor": "middle" }, String(tick)));
  }
  const path = (line) => line.map(([e, v], at) => `${at ? "L" : "M"}${x.pixel(e).toFixed(1)} ${y.pixel(v).toFixed(1)}`).join("");
  for (const line of second) picture.append(svg("path", { class: "line dashed", d: path(line) }));
  lines.forEach((line, at) => {
    picture.append(svg("path", { class: at + 1 < lines.length ? "line pale" : "line", d: path(line) }));
  });
  picture.append(
    svg("circle", { class: "end", r: 3, cx: x.pixel(end[0]), cy: y.pixel(end[1]) }),
    svg("text", { class: "value", x: x.pixel(end[0]) + 7, y: y.pixel(end[1]) + 4 }, written(Number(end[1].toPrecision(3)))),
  );
  return picture;
}
