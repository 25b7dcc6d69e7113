// The table of a run's episodes, with filters.

const yesNo = (name) => (row) => (row[name] === undefined ? "–" : row[name] ? "yes" : "no");

const EPISODE_COLUMNS = [
  { name: "episode", title: "episode", width: "6rem", number: true },
  { name: "return", title: "return", number: true },
  { name: "length", title: "steps", number: true },
  { name: "success", title: "success", cell: yesNo("success") },
  {
    name: "invalid",
    title: "invalid replies",
    number: true,
    cell: (row) => (row.invalid ? badge(number(row.invalid), "bad") : number(row.invalid)),
  },
  { name: "fallbacks", title: "fallbacks", number: true },
  { name: "tokens", title: "tokens", number: true },
  { name: "end", title: "end" },
  { name: "recorded", title: "steps recorded", cell: yesNo("recorded") },
];

class Episodes extends HTMLElement {
  show(index, run, content, query) {
    this.run = run;
    this.rows = content.episodes;
    this.invalid = h("input", { type: "checkbox", checked: query.get("invalid") === "1", onchange: () => this.draw() });
    this.minReturn = h("input", {
      type: "number",
      step: "any",
      value: query.get("least") ?? "",
      "aria-label": "minimum return",
      oninput: () => this.draw(),
    });
    this.count = h("span", { class: "faint", role: "status" });
    this.table = document.createElement("x-table");
    const bar = h(
      "div",
      { class: "bar" },
      runChooser(index, run.key, (candidate) => candidate.episodes > 0, (key) => link(`episodes/${key}`)),
      h("label", {}, this.invalid, " has invalid replies"),
      h("label", {}, "return at least ", this.minReturn),
      this.count,
      h("span", { class: "faint" }, "Click an episode to see it step by step."),
    );
    this.replaceChildren(bar, this.table);
    this.draw();
  }

  draw() {
    const minReturn = this.minReturn.value === "" ? null : Number(this.minReturn.value);
    const rows = this.rows.filter(
      (row) => (!this.invalid.checked || row.invalid > 0) && (minReturn === null || row.return >= minReturn),
    );
    this.count.textContent = `${number(rows.length)} of ${plural(this.rows.length, "episode")}`;
    remember(`episodes/${this.run.key}`, { invalid: this.invalid.checked ? "1" : "", least: this.minReturn.value });
    this.table.set(EPISODE_COLUMNS, rows, (row) => {
      if (row.recorded) location.hash = link(`episode/${this.run.key}/${row.episode}`);
      else this.count.textContent = `The steps of episode ${row.episode} were not recorded (play.records).`;
    });
  }
}
customElements.define("x-episodes", Episodes);

function runChooser(index, key, fits, target) {
  const runs = index.runs.filter((run) => fits(run) || run.key === key);
  const short = shortLabels(runs);
  const options = runs.map((run) => h("option", { value: run.key, selected: run.key === key, title: run.label }, short.get(run.key)));
  const select = h("select", { onchange: () => (location.hash = target(select.value)) }, ...options);
  return h("label", { class: "chooser" }, "Run ", select);
}
