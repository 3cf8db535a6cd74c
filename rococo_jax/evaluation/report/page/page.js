"use strict";
// Columns sort on a click: numbers by their exact value, largest first, words from A to Z; what is missing goes last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const rows = [...table.tBodies[0].rows];
      const keyOf = (row) => {
        const cell = row.cells[column];
        if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
        const text = cell.textContent.trim();
        return text === "–" ? null : text;
      };
      const wordy = rows.some((row) => typeof keyOf(row) === "string");
      const now = head.getAttribute("aria-sort");
      const order = now === null ? (wordy ? "ascending" : "descending") : now === "ascending" ? "descending" : "ascending";
      const sign = order === "ascending" ? 1 : -1;
      rows.sort((one, other) => {
        const a = keyOf(one), b = keyOf(other);
        if (a === null || b === null) return (a === null) - (b === null);
        return sign * (wordy ? String(a).localeCompare(String(b), "en", { numeric: true }) : a - b);
      });
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      table.tBodies[0].append(...rows);
    });
  });
}
