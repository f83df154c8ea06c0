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
const announce = (text) => {
  byId("said").textContent = text;
};

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
    announce(done ? "Copied." : "The command is selected: press Ctrl+C.");
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
