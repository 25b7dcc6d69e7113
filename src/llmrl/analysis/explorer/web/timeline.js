// The timeline of a principal: proposals, their objectives, and the conversations with the model that proposed them.

const MAX_RUNS = 8; // drawn at once

/** Sorts runs so that the first run of each group comes first. By default the timeline compares the first two runs. */
function sortByGroup(runs) {
  const seen = new Set();
  const isFirst = (run) => !seen.has(run.short) && seen.add(run.short);
  const first = runs.filter(isFirst);
  return [...first, ...runs.filter((run) => !first.includes(run))];
}

class Timeline extends HTMLElement {
  async show(index, query) {
    this.index = index;
    this.runs = index.runs.filter((run) => run.proposals > 0);
    this.short = shortLabels(this.runs);
    const known = new Set(this.runs.map((run) => run.key));
    const requested = (query.get("runs") ?? "").split(",").filter((key) => known.has(key));
    this.chosen = new Set(requested.length ? requested : sortByGroup(this.runs).slice(0, 2).map((run) => run.key));
    this.filter = h("input", {
      type: "search",
      placeholder: "filter runs",
      "aria-label": "filter runs of the timeline",
      oninput: () => this.drawRuns(),
    });
    this.list = h("div", { class: "checks" });
    this.charts = h("div", { class: "charts" });
    this.side = h("aside", { class: "side", "aria-label": "conversation behind a proposal", hidden: true });
    const chooser = h("div", { class: "chooser-panel" }, h("h3", {}, "Runs"), this.filter, this.list);
    this.replaceChildren(h("div", { class: "timeline" }, chooser, this.charts, this.side));
    if (!this.runs.length) {
      this.charts.replaceChildren(h("p", { class: "faint none" }, "No run here has proposals of a principal."));
      return;
    }
    this.drawRuns();
    await this.draw();
    // Charts are redrawn when their width changes, e.g. because a conversation is shown next to them.
    this.observer = new ResizeObserver(() => this.width !== this.drawn && this.redraw());
    this.observer.observe(this.charts);
    const [run, at] = (query.get("open") ?? "").split(".");
    if (known.has(run) && at !== undefined) this.open({ run, at: Number(at) });
  }

  drawRuns() {
    const shown = this.runs.filter((run) => matches(description(run), this.filter.value));
    this.list.replaceChildren(
      ...shown.map((run) =>
        h(
          "label",
          { class: "check", title: run.label },
          h("input", {
            type: "checkbox",
            checked: this.chosen.has(run.key),
            onchange: (event) => this.toggle(run.key, event.target.checked),
          }),
          h("span", { class: "swatch", style: { background: this.color(run.key) } }),
          h("span", {}, this.short.get(run.key)),
        ),
      ),
    );
  }

  color(key) {
    const shades = d3.schemeTableau10;
    return shades[this.runs.findIndex((run) => run.key === key) % shades.length];
  }

  toggle(key, on) {
    if (on) this.chosen.add(key);
    else this.chosen.delete(key);
    this.draw();
  }

  disconnectedCallback() {
    this.observer?.disconnect();
  }

  async draw() {
    const requestNumber = (this.requestNumber = (this.requestNumber ?? 0) + 1);
    const keys = this.runs.map((run) => run.key).filter((key) => this.chosen.has(key));
    const contents = await Promise.all(keys.slice(0, MAX_RUNS).map(loadRun));
    if (requestNumber !== this.requestNumber) return; // other runs were chosen while these were loaded
    this.contents = new Map(contents.map((content) => [content.key, content]));
    this.opened = null;
    this.side.hidden = true;
    remember("timeline", { runs: keys.join(",") });
    this.redraw();
  }

  redraw() {
    const contents = [...this.contents.values()];
    const keys = [...this.chosen];
    this.drawn = this.width;
    const rows = contents.flatMap((content) =>
      content.proposals.map((proposal, at) => ({ ...proposal, run: content.key, at, place: at + 1 })),
    );
    const parts = [];
    if (keys.length > MAX_RUNS) parts.push(h("p", { class: "faint" }, `The first ${MAX_RUNS} runs are drawn.`));
    if (!rows.length) parts.push(h("p", { class: "faint none" }, "Choose a run at the left."));
    else {
      parts.push(
        h("h3", {}, "Objective of each proposal, with its 95 % interval"),
        h("p", { class: "faint" }, "Click a proposal, or press Enter on it, for its conversation with the model. Hollow: a fallback without a valid reply."),
        this.objective(rows),
        ...this.multiples(contents, "welfare", "Welfare"),
        ...this.multiples(contents, "behavior", "Behavior in the validation episodes"),
        ...this.parameters(contents),
      );
    }
    const top = this.charts.scrollTop;
    this.charts.replaceChildren(...parts);
    this.charts.scrollTop = top;
    if (this.opened) this.markChosen(...this.opened);
  }

  get width() {
    return Math.max(360, this.charts.clientWidth - 16);
  }

  x(rows) {
    const last = d3.max(rows, (d) => d.place) ?? 1;
    return { domain: [0.5, last + 0.5], label: "proposal", ticks: Math.min(last, 10), tickFormat: (d) => (Number.isInteger(d) ? d : "") };
  }

  objective(rows) {
    const plot = Plot.plot({
      width: this.width,
      height: 260,
      marginLeft: 52,
      style: { background: "none" },
      x: this.x(rows),
      y: { label: "objective", grid: true, nice: true },
      marks: [
        Plot.line(rows, { x: "place", y: "objective", z: "run", stroke: (d) => this.color(d.run), strokeOpacity: 0.35 }),
        Plot.ruleX(rows.filter((d) => d.low !== null && d.low !== d.high), {
          x: "place",
          y1: "low",
          y2: "high",
          stroke: (d) => this.color(d.run),
          strokeOpacity: 0.6,
        }),
        Plot.dot(rows, {
          x: "place",
          y: "objective",
          stroke: (d) => this.color(d.run),
          fill: (d) => (d.fallback ? css("--page") : this.color(d.run)),
          r: 5,
        }),
      ],
    });
    this.addClickHandlers(plot, rows);
    return plot;
  }

  /** Makes the marks of a plot buttons that open a proposal. Plot stores in each mark the index of its row. */
  addClickHandlers(plot, rows) {
    for (const dot of plot.querySelectorAll("[aria-label=dot] circle, [aria-label=dot] path, [aria-label=cell] rect")) {
      const row = rows[dot.__data__];
      if (!row) continue;
      const name = this.short.get(row.run);
      const label = `${name}, proposal ${row.place}${row.name ? `, ${row.name} ${number(row.value)}` : `, objective ${number(row.objective)}`}`;
      const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
      title.textContent = label;
      dot.append(title);
      for (const [key, value] of Object.entries({ class: "mark", role: "button", tabindex: row.name ? -1 : 0, "aria-label": label }))
        dot.setAttribute(key, value);
      dot.addEventListener("click", () => this.open(row));
      dot.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          this.open(row);
        }
      });
    }
  }

  /** Returns a heading and a small chart for each measure of a kind: welfare or behavior. */
  multiples(contents, kind, title) {
    const names = [...new Set(contents.flatMap((content) => Object.keys(content[kind])))];
    if (!names.length) return [];
    const plots = names.map((name) => {
      const rows = contents.flatMap((content) =>
        (content[kind][name] ?? []).map(([place, value]) => ({ run: content.key, at: place - 1, place, name, value })),
      );
      const plot = Plot.plot({
        width: 204,
        height: 132,
        marginLeft: 42,
        marginBottom: 22,
        marginTop: 10,
        style: { background: "none" },
        x: { ...this.x(rows), label: null, ticks: 4 },
        y: { label: null, ticks: 4, grid: true, nice: true, tickFormat: (d) => number(d) },
        marks: [
          Plot.line(rows, { x: "place", y: "value", z: "run", stroke: (d) => this.color(d.run), strokeOpacity: 0.6 }),
          Plot.dot(rows, { x: "place", y: "value", fill: (d) => this.color(d.run), r: 2.5 }),
        ],
      });
      this.addClickHandlers(plot, rows);
      return h("figure", { class: "multiple" }, h("figcaption", {}, name.replaceAll("_", " ")), plot);
    });
    return [h("h3", {}, title), h("div", { class: "multiples" }, ...plots)];
  }

  /** Returns a heading and a heat map for each run: a row for each parameter, a column for each proposal. */
  parameters(contents) {
    const ranges = new Map();
    for (const proposal of contents.flatMap((content) => content.proposals))
      for (const [name, value] of Object.entries(proposal.parameters))
        ranges.set(name, [Math.min(value, ranges.get(name)?.[0] ?? value), Math.max(value, ranges.get(name)?.[1] ?? value)]);
    if (!ranges.size) return [];
    const names = [...ranges.keys()].slice(0, 40);
    const plots = contents.map((content) => {
      const rows = content.proposals.flatMap((proposal, at) =>
        names
          .filter((name) => name in proposal.parameters)
          .map((name) => {
            const [low, high] = ranges.get(name);
            const value = proposal.parameters[name];
            return { run: content.key, at, place: at + 1, name, value, share: high > low ? (value - low) / (high - low) : 0.5 };
          }),
      );
      const plot = Plot.plot({
        width: this.width,
        height: 26 + 20 * names.length,
        marginLeft: 150,
        marginBottom: 24,
        marginTop: 2,
        style: { background: "none" },
        x: { label: null, type: "band", tickFormat: (d) => (d % Math.ceil(content.proposals.length / 20) === 0 || d === 1 ? d : "") },
        y: { label: null, domain: names },
        color: { type: "linear", domain: [-0.15, 1], range: [css("--page"), this.color(content.key)] },
        marks: [Plot.cell(rows, { x: "place", y: "name", fill: "share", inset: 0.5 })],
      });
      this.addClickHandlers(plot, rows);
      return h("figure", { class: "strip-figure" }, h("figcaption", {}, this.short.get(content.key)), plot);
    });
    return [h("h3", {}, "Parameters, from pale (minimum of the runs shown) to dark (maximum)"), ...plots];
  }

  async open({ run, at }) {
    const content = this.contents.get(run);
    const proposal = content?.proposals[at];
    if (!proposal) return;
    const name = this.runs.find((candidate) => candidate.key === run).label;
    const caption = `${name} · step ${proposal.step}${proposal.context ? ` · context ${proposal.context}` : ""}`;
    const interval = proposal.low === null ? "" : ` (95 % ${number(proposal.low)} to ${number(proposal.high)})`;
    const stepButton = (to) => h("button", { disabled: !content.proposals[to], onclick: () => this.open({ run, at: to }) }, to < at ? "‹" : "›");
    const talk = document.createElement("x-conversation");
    this.side.hidden = false;
    this.side.replaceChildren(
      h(
        "div",
        { class: "side-head" },
        h("h3", { tabIndex: -1 }, `Proposal ${at + 1}`),
        stepButton(at - 1),
        stepButton(at + 1),
        h("button", { onclick: () => this.close(), "aria-label": "close" }, "×"),
      ),
      h("p", { class: "faint" }, caption),
      h("p", {}, h("strong", {}, `objective ${number(proposal.objective)}`), interval, h("span", { class: "faint" }, ` over ${plural(proposal.episodes, "episode")}`)),
      proposal.fallback ? h("p", {}, badge("fallback: no reply was valid", "bad")) : "",
      this.parameterBars(proposal),
      proposal.reasoning ? block("Reasoning", proposal.reasoning, "thought") : "",
      talk,
    );
    this.opened = [run, at];
    this.markChosen(run, at);
    remember("timeline", { runs: [...this.contents.keys()].join(","), open: `${run}.${at}` });
    if (proposal.talk === null) {
      talk.replaceChildren(h("p", { class: "faint" }, "This proposal has no conversation with a language model."));
      return;
    }
    const part = await loadPart(run, `t${Math.floor(proposal.talk / content.chunk)}`);
    talk.show(part.talks[proposal.talk % content.chunk], part.texts);
  }

  parameterBars(proposal) {
    const entries = Object.entries(proposal.parameters);
    const maximum = Math.max(...entries.map(([, value]) => Math.abs(value)), 1e-12);
    return h(
      "div",
      { class: "numbers" },
      ...entries.flatMap(([name, value]) => [
        h("span", {}, name),
        h("span", { class: "bar-cell" }, h("span", { class: value < 0 ? "fill minus" : "fill", style: { width: `${(100 * Math.abs(value)) / maximum}%` } })),
        h("span", { class: "number" }, number(value)),
      ]),
    );
  }

  markChosen(run, at) {
    const name = this.short.get(run);
    for (const dot of this.charts.querySelectorAll(".mark"))
      dot.classList.toggle("chosen", dot.getAttribute("aria-label").startsWith(`${name}, proposal ${at + 1},`));
  }

  close() {
    this.side.hidden = true;
    this.opened = null;
    remember("timeline", { runs: [...this.contents.keys()].join(",") });
    for (const dot of this.charts.querySelectorAll(".chosen")) dot.classList.remove("chosen");
  }
}
customElements.define("x-timeline", Timeline);
