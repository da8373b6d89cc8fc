// Click on a heading: sort its table by this column, a second time in the other order. Nothing is loaded or sent.
// Rows of published scores and differences stay below their method's row; empty cells come last.
function shown(row, column) {
  const cell = row.cells[column];
  return (cell.querySelector("span") || cell).textContent.trim();
}
function value(text) {
  const number = /^[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?(?![\w.])/.exec(text);
  return number ? Number(number[0].replaceAll(",", "")) : NaN;
}
function compareTexts(a, b) {
  const [x, y] = [value(a), value(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
}
function sortTable(table, column, order) {
  const body = table.tBodies[0];
  const groups = [];
  for (const row of body.rows) {
    if (row.className === "published" || row.className === "difference") groups.at(-1)?.push(row) ?? groups.push([row]);
    else groups.push([row]);
  }
  const text = (group) => shown(group[0], column);
  const isEmpty = (group) => ["", "-"].includes(text(group));
  groups.sort((a, b) => isEmpty(a) - isEmpty(b) || order * compareTexts(text(a), text(b)));
  body.append(...groups.flat());
}
for (const table of document.querySelectorAll("table")) {
  for (const heading of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const isAscending = heading.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", isAscending ? "descending" : "ascending");
      sortTable(table, heading.cellIndex, isAscending ? -1 : 1);
    });
  }
}
