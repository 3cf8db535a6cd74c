"use strict";
// Columns sort on a click: numbers by their value, largest first, words from A to Z; what is missing goes last.
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
// A table wider than its place says so, and says no more once its end is seen.
for (const place of document.querySelectorAll(".scroll")) {
  const line = document.createElement("p");
  line.className = "more";
  line.textContent = "more columns to the right →";
  place.before(line);
  const look = () => {
    const left = place.scrollWidth - place.clientWidth;
    place.classList.toggle("wide", left > 1);
    line.hidden = left - place.scrollLeft <= 1;
  };
  place.addEventListener("scroll", look, { passive: true });
  new ResizeObserver(look).observe(place);
  look();
}
// Rows stay whose words (model, variant) hold every word of the filter.
for (const table of document.querySelectorAll("table.filterable")) {
  const rows = [...table.tBodies[0].rows];
  const label = document.createElement("label");
  const field = document.createElement("input");
  const count = document.createElement("span");
  field.type = "search";
  field.placeholder = "words of a row";
  count.setAttribute("role", "status");
  label.append("Filter ", field);
  const line = document.createElement("p");
  line.className = "filter";
  line.append(label, " ", count);
  table.parentElement.before(line);
  const wordsOf = (row) => [...row.querySelectorAll("th, .words")].map((cell) => cell.textContent).join(" ").toLowerCase();
  field.addEventListener("input", () => {
    const wanted = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !wanted.every((word) => wordsOf(row).includes(word));
    const shown = rows.filter((row) => !row.hidden).length;
    count.textContent = wanted.length ? `${shown} of ${rows.length} rows` : "";
  });
}
