(() => {
  "use strict";
  const table = document.getElementById("parameters");
  if (!table) return;
  document.documentElement.classList.add("js");
  const PAGE = 50;
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row, place) => ({
    row,
    place,
    text: row.textContent.toLowerCase(),
    cells: Array.from(row.cells, (cell) => cell.textContent),
  }));
  const heads = Array.from(table.tHead.rows[0].cells);
  const byName = new Intl.Collator(undefined, { numeric: true }).compare;
  const get = (id) => document.getElementById(id);
  const [search, status, previous, next, everything] =
    ["filter", "shown", "previous", "next", "everything"].map(get);
  let page = 0;
  let order = rows;
  let whole = false;

  const value = (text) => {
    const number = Number(text);
    if (!Number.isNaN(number)) return number;
    return { inf: Infinity, "-inf": -Infinity }[text] ?? NaN;
  };

  function show() {
    const wanted = search.value.trim().toLowerCase();
    const found = order.filter((entry) => entry.text.includes(wanted));
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    page = whole ? 0 : Math.min(page, pages - 1);
    const first = page * PAGE;
    const visible = whole ? found : found.slice(first, first + PAGE);
    body.replaceChildren(...visible.map((entry) => entry.row));
    const range = visible.length ? `${first + 1} to ${first + visible.length} of ` : "";
    const filtered = found.length < rows.length ? ` (${rows.length} without filter)` : "";
    status.textContent = `Rows ${range}${found.length}${filtered}`;
    previous.disabled = page === 0;
    next.disabled = whole || page >= pages - 1;
    for (const button of [previous, next, everything]) button.hidden = found.length <= PAGE;
    everything.textContent = whole ? "Show pages" : "Show all";
  }

  function sort(column) {
    const head = heads[column];
    const descending = head.getAttribute("aria-sort") === "ascending";
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const numeric = head.classList.contains("number");
    const sign = descending ? -1 : 1;
    order = [...rows].sort((a, b) => {
      if (!numeric) return sign * byName(a.cells[column], b.cells[column]) || a.place - b.place;
      const [x, y] = [value(a.cells[column]), value(b.cells[column])];
      // What is not a number comes last in both directions.
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a.place - b.place;
      return sign * (x - y) || a.place - b.place;
    });
    page = 0;
    show();
  }

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "Sort by this column";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sort(column));
  });
  search.addEventListener("input", () => { page = 0; show(); });
  previous.addEventListener("click", () => { page -= 1; show(); });
  next.addEventListener("click", () => { page += 1; show(); });
  everything.addEventListener("click", () => { whole = !whole; show(); });
  show();
})();
