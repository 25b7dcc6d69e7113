// The header of all views, and the choice of the view by the fragment of the URL.

class Explorer extends HTMLElement {
  async connectedCallback() {
    this.tabs = h("nav", { "aria-label": "views" });
    this.view = h("main", {});
    this.where = h("span", { class: "faint" });
    this.replaceChildren(h("header", {}, h("h1", {}, "llmrl explorer"), this.tabs, this.where), this.view);
    addEventListener("hashchange", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    await this.draw();
  }

  async draw() {
    const { path, query } = place();
    const [view = "runs", key, number] = path;
    try {
      const index = await load("index", "index");
      this.where.textContent = index.folder;
      this.drawTabs(index, view);
      const run = index.runs.find((candidate) => candidate.key === key) ?? index.runs.find((candidate) => candidate.episodes > 0) ?? index.runs[0];
      const page = document.createElement(`x-${["runs", "episodes", "episode", "timeline"].includes(view) ? view : "runs"}`);
      let viewArguments = [index, query];
      if (view === "episodes") viewArguments = [index, run, await loadRun(run.key), query];
      if (view === "episode") {
        const content = await loadRun(run.key);
        const row = content.episodes.find((episode) => episode.episode === Number(number));
        if (!row?.recorded) throw new Error(`${run.label} has no steps of episode ${number}`);
        viewArguments = [index, run, await loadPart(run.key, `e${row.episode}`), row, query];
      }
      this.view.replaceChildren(page);
      await page.show(...viewArguments);
    } catch (error) {
      this.view.replaceChildren(h("p", { class: "none" }, badge("cannot be shown", "bad"), ` ${error.message}`));
    }
  }

  drawTabs(index, view) {
    const tab = (name, title, target) => h("a", { href: target, "aria-current": view === name || (name === "episodes" && view === "episode") ? "page" : null }, title);
    const first = index.runs.find((run) => run.episodes > 0);
    this.tabs.replaceChildren(
      tab("runs", "Runs", link("runs")),
      ...(first ? [tab("episodes", "Episodes", link(`episodes/${first.key}`))] : []),
      ...(index.runs.some((run) => run.proposals > 0) ? [tab("timeline", "Timeline", link("timeline"))] : []),
    );
  }
}
customElements.define("x-explorer", Explorer);
