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
