// <x-table>: a table of which only the visible rows are in the DOM. Arrow keys select a row, Enter opens it.

const ROW = 32; // height of a row, pixels
const BEYOND = 6; // rows above and below the visible ones that are in the DOM

class Table extends HTMLElement {
  /** Shows rows. columns: [{name, title, width, number, cell(row)}]; open(row) is called on a click or Enter. */
  set(columns, rows, open, sorting = null) {
    this.columns = columns;
    this.open = open;
    this.sorting = sorting ?? this.sorting ?? { name: columns[0].name, down: false };
    this.active = 0;
    if (!this.body) this.build();
    this.head.style.gridTemplateColumns = this.grid();
    this.style.setProperty("--columns", this.columns.length);
    this.rows = rows;
    this.sort();
  }

  build() {
    this.head = h("div", { class: "table-head", role: "row" });
    this.body = h("div", { class: "table-body", role: "rowgroup" });
    this.scroller = h("div", { class: "table-scroll", tabIndex: 0, role: "grid", "aria-label": "rows" }, this.body);
    this.scroller.addEventListener("scroll", () => this.draw());
    this.scroller.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.scroller);
    this.replaceChildren(this.head, this.scroller);
  }

  grid() {
    return this.columns.map((column) => column.width ?? "minmax(5rem, 1fr)").join(" ");
  }

  sort() {
    const { name, down } = this.sorting;
    const sign = down ? -1 : 1;
    this.rows = [...this.rows].sort((a, b) => {
      const [x, y] = [a[name], b[name]];
      if ((x ?? null) === null || (y ?? null) === null) return ((x ?? null) === null) - ((y ?? null) === null);
      return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
    });
    this.head.replaceChildren(
      ...this.columns.map((column) => {
        const sorted = column.name === name;
        return h(
          "button",
          {
            class: `column ${column.number ? "number" : ""}`,
            role: "columnheader",
            "aria-sort": sorted ? (down ? "descending" : "ascending") : "none",
            onclick: () => {
              this.sorting = { name: column.name, down: sorted ? !down : Boolean(column.number) };
              this.sort();
            },
          },
          `${column.title}${sorted ? (down ? " ↓" : " ↑") : ""}`,
        );
      }),
    );
    this.scroller.setAttribute("aria-rowcount", this.rows.length);
    this.body.style.height = `${this.rows.length * ROW}px`;
    this.draw();
  }

  draw() {
    if (!this.rows) return;
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - BEYOND);
    const count = Math.ceil(this.scroller.clientHeight / ROW) + 2 * BEYOND;
    const visible = this.rows.slice(first, first + count);
    this.body.replaceChildren(
      ...visible.map((row, i) => {
        const at = first + i;
        return h(
          "div",
          {
            class: `row ${at === this.active ? "active" : ""}`,
            role: "row",
            "aria-rowindex": at + 1,
            style: { top: `${at * ROW}px`, gridTemplateColumns: this.grid() },
            onclick: () => this.open(row),
          },
          ...this.columns.map((column) => {
            const shown = column.cell ? column.cell(row) : column.number ? number(row[column.name]) : row[column.name];
            const title = typeof shown === "string" ? shown : "";
            return h("span", { class: column.number ? "cell number" : "cell", role: "gridcell", title }, shown ?? "–");
          }),
        );
      }),
    );
  }

  key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" && this.rows[this.active]) this.open(this.rows[this.active]);
    if (!(event.key in steps) || !this.rows.length) return;
    event.preventDefault();
    this.active = Math.min(this.rows.length - 1, Math.max(0, this.active + steps[event.key]));
    const top = this.active * ROW;
    const scroller = this.scroller;
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    if (top + ROW > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = top + ROW - scroller.clientHeight;
    this.draw();
  }
}
customElements.define("x-table", Table);
