// ---- the list of trials ---------------------------------------------------------------------

const isConstant = (key) => count > 1 && columns[key].every((v) => v === columns[key][0]);

function startTable() {
  const usual = [...new Set(["trial", ...goals.keys(), ...data.usual])];
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

// The order of columns: the trial, its objectives, then as in the labels, then what was searched.
function rank(key) {
  const order = ["trial", "study", ...goals.keys(), ...Object.keys(data.labels)];
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
  announce(`Sorted by ${info(key).label}, ${down ? "largest" : "smallest"} first.`);
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

// ---- the filter: terms, and rules such as T_e>100 -------------------------------------------

// A column by its name, its label, or the last part of its name: `accuracy` is val_accuracy.
function columnNamed(name) {
  const wanted = name.toLowerCase();
  const keys = [...new Set([...goals.keys(), ...Object.keys(columns)])].filter((key) => columns[key]);
  return keys.find((key) => key.toLowerCase() === wanted)
    || keys.find((key) => info(key).label.toLowerCase() === wanted)
    || keys.find((key) => key.toLowerCase().endsWith(`_${wanted}`));
}

function numberIn(text) {
  const found = /^(-?[\d.,]+(?:e[-+]?\d+)?)(k|kb|m|mb|g|gb)?$/i.exec(text);
  if (!found) return null;
  const factor = { k: 1e3, m: 1e6, g: 1e9 }[(found[2] || "").charAt(0).toLowerCase()] || 1;
  const number = Number(found[1].replace(/,/g, "")) * factor;
  return Number.isFinite(number) ? { number, plain: !found[2] } : null;
}

// `size_bytes<12000` and `size<12k` are in bytes; `size<12` is in kB, as the column shows it.
function inColumn(key, name, { number, plain }) {
  const byKey = key.toLowerCase() === name.toLowerCase();
  return plain && !byKey ? number / (info(key).scale || 1) : number;
}

const TESTS = {
  ">": (a, b) => a > b,
  "<": (a, b) => a < b,
  ">=": (a, b) => a >= b,
  "<=": (a, b) => a <= b,
  "=": (a, b) => a === b,
  "!=": (a, b) => a !== b,
};

// A rule is a function of a row; what cannot be understood is reported and left out.
function ruleOf(term) {
  const found = /^([^<>=!]+)(>=|<=|!=|=|>|<)(.+)$/.exec(term);
  if (!found) {
    const wanted = term.toLowerCase();
    return { test: (row) => textOf(row).includes(wanted) };
  }
  const [, name, sign, text] = found;
  const key = columnNamed(name);
  if (!key) return { problem: `There is no column ${name}.` };
  const given = numberIn(text);
  const number = given && inColumn(key, name, given);
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
  const terms = byId("filter").value.replace(/\s*(>=|<=|!=|=|>|<)\s*/g, "$1").split(/\s+/).filter(Boolean);
  const rules = terms.map(ruleOf);
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
