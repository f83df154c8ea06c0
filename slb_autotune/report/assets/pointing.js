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

// A second click on points that lie on each other chooses the next of them.
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
  const axes = [state.y, state.x].filter((key) => data.labels[key] && key !== "trial");
  const keys = [...new Set([...goals.keys(), ...axes])];
  const lines = keys.map((key) => [longName(key), withUnit(key, valueOf(key, row))]);
  const known = new Set(lines.map(([name]) => name));
  lines.push(...settingsOf(row).filter(([name]) => !known.has(name)));
  const more = sameSpot(row).length - 1;
  return [
    el("strong", {}, nameOf(row)),
    el("span", { class: "kind" }, kindOf(row)),
    el("dl", {}, ...lines.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)])),
    more ? el("span", { class: "kind" }, `${more} more at this point: click again`) : null,
  ].filter(Boolean);
}

function kindOf(row) {
  const parts = [onFront(row) ? "on the front" : "", valueOf("status", row), valueOf("source", row)];
  return parts.filter(Boolean).join(" · ");
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
  if (from) announce(`${nameOf(row)} chosen.`);
  if (from === "table") showDetailsIfAway();
}

function showDetailsIfAway() {
  const frame = byId("details").getBoundingClientRect();
  if (frame.bottom < 80 || frame.top > innerHeight - 80) byId("details").scrollIntoView({ block: "start" });
}

function startAxes() {
  const numbers = Object.keys(columns).filter((key) => columns[key].some(isNumber));
  const others = data.axes.filter((key) => numbers.includes(key) && !goals.has(key));
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
