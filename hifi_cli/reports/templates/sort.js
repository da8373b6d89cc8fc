"use strict";
// A click on a heading sorts the table by this column, a second one the other way round. Numbers are
// sorted as numbers, and missing values are last both ways. Rows that belong together share a tbody.

function keyOf(body, column) {
  const cell = body.rows[0].cells[column];
  return cell.dataset.sort ?? cell.textContent.trim();
}

function compareKeys(first, second) {
  const difference = Number(first) - Number(second);
  if (!Number.isNaN(difference)) return difference;
  return first.localeCompare(second, "en", { numeric: true });
}

function sortBy(heading) {
  const table = heading.closest("table");
  const column = heading.cellIndex;
  const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const bodies = [...table.tBodies].sort((first, second) => {
    const keys = [keyOf(first, column), keyOf(second, column)];
    if (keys.includes("")) return (keys[0] === "") - (keys[1] === "");
    return sign * compareKeys(...keys);
  });
  table.append(...bodies);
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
}

for (const heading of document.querySelectorAll("table.sortable th")) {
  const button = document.createElement("button");
  button.append(...heading.childNodes);
  button.addEventListener("click", () => sortBy(heading));
  heading.append(button);
}
