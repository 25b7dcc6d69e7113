// The table of runs, with a text filter.

const RUN_COLUMNS = [
  { name: "short", title: "run", width: "minmax(14rem, 5fr)", cell: (run) => h("span", { title: run.label }, run.shortLabel) },
  { name: "seed", title: "seed", width: "4rem", number: true },
  { name: "env", title: "env" },
  { name: "agent", title: "agent" },
  { name: "principal", title: "principal" },
  { name: "state", title: "status", width: "7.5rem", cell: (run) => badge(run.state, STATES[run.state]) },
  { name: "result", title: "result", width: "6rem", number: true },
  { name: "episodes", title: "episodes", width: "6rem", number: true },
  { name: "proposals", title: "proposals", width: "6.5rem", number: true },
];

const description = (run) => [run.label, run.env, run.agent, run.principal, run.state, run.llm].join(" ");

class Runs extends HTMLElement {
  show(index, query) {
    this.filter = h("input", {
      type: "search",
      placeholder: "run, env, agent, principal, status …",
      value: query.get("filter") ?? "",
      "aria-label": "filter runs",
      oninput: () => this.draw(index),
    });
    this.count = h("span", { class: "faint", role: "status" });
    this.table = document.createElement("x-table");
    const bar = h("div", { class: "bar" }, h("label", {}, "Filter ", this.filter), this.count, h("span", { class: "faint" }, "Click a run to see its episodes or proposals."));
    this.replaceChildren(bar, this.problems(index), this.table);
    this.draw(index);
  }

  problems(index) {
    const errors = index.runs.flatMap((run) =>
      [run.error, ...run.problems].filter(Boolean).map((text) => h("li", {}, `${run.label}: ${text}`)),
    );
    if (!errors.length) return "";
    return h("details", { class: "folded" }, h("summary", {}, plural(errors.length, "error")), h("ul", {}, ...errors));
  }

  draw(index) {
    const labels = shortLabels(index.runs, (run) => run.short);
    for (const run of index.runs) run.shortLabel = labels.get(run.key);
    const rows = index.runs.filter((run) => matches(description(run), this.filter.value));
    this.count.textContent = `${number(rows.length)} of ${plural(index.runs.length, "run")}`;
    remember("runs", { filter: this.filter.value });
    // Columns that are empty for all runs are not shown.
    const isEmpty = (value) => value === undefined || value === null || value === "";
    const isShown = (name, value) => (name === "episodes" || name === "proposals" ? value > 0 : !isEmpty(value));
    const columns = RUN_COLUMNS.filter(({ name }) => name === "short" || index.runs.some((run) => isShown(name, run[name])));
    this.table.set(columns, rows, (run) => {
      location.hash = run.proposals && !run.episodes ? link("timeline", { runs: run.key }) : link(`episodes/${run.key}`);
    });
  }
}
customElements.define("x-runs", Runs);
