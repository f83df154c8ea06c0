// ---- columns: their names, units and digits -------------------------------------------------

const NEVER_SHARED = ["trial", "on_front", "status", "reason", "command", "run_id", "study", "source"];

// The labels, units and digits of all columns come with the data.
const info = (key) => data.labels[key] || { label: key.replace("weight_bits/", "bits ") };
const longName = (key) => info(key).long || info(key).label;
const scaled = (key, value) => value * (info(key).scale || 1);

function written(value, { decimals, digits = 4 } = {}) {
  if (decimals != null) {
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
  return isNumber(value) ? written(scaled(key, value), info(key)) : String(value);
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
const state = { chosen: -1, active: -1, zoom: false, logs: {}, x: "", y: "", sort: {}, shown: [] };

const valueOf = (key, row) => (columns[key] ? columns[key][row] : null);
const onFront = (row) => Boolean(valueOf("on_front", row));
const isStopped = (row) => ["stopped", "running"].includes(valueOf("status", row));

const sourceOf = (row) => String(valueOf("source", row) || "");

const shapeOf = (row) => data.kinds[row];

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
  columns = data.columns;
  offsets = [0];
  for (const size of data.epoch_counts) offsets.push(offsets[offsets.length - 1] + size);
  [state.x, state.y] = data.start;
  const first = goals.keys().next().value;
  state.sort = { key: first, down: goals.get(first) === "maximize" };
}
