// One episode, step by step: pictures, rewards and conversations.

const PLAY_MS = 400; // time per step during playback

const isBad = (line) => line.invalid || line.valid === false;

class Episode extends HTMLElement {
  show(index, run, content, row, query) {
    Object.assign(this, { run, content, row, step: 0, player: 0, timer: null });
    this.last = content.steps.length - 1;
    this.build(index);
    this.player = Math.min(content.players - 1, Math.max(0, Number(query.get("player") ?? 0)));
    this.choice.value = this.player;
    this.drawChart();
    this.go(Number(query.get("step") ?? 0));
    this.listener = (event) => this.key(event);
    document.addEventListener("keydown", this.listener);
    this.observer = new ResizeObserver(() => this.drawChart());
    this.observer.observe(this.chart);
  }

  disconnectedCallback() {
    document.removeEventListener("keydown", this.listener);
    this.observer?.disconnect();
    clearInterval(this.timer);
  }

  build(index) {
    const { content, row, run } = this;
    this.choice = h(
      "select",
      { onchange: () => this.choosePlayer(Number(this.choice.value)) },
      ...Array.from({ length: content.players }, (_, i) => h("option", { value: i }, `player ${i + 1}`)),
    );
    this.scrub = h("input", {
      type: "range",
      min: 0,
      max: this.last,
      "aria-label": "step",
      oninput: () => this.go(Number(this.scrub.value)),
    });
    this.playing = h("button", { onclick: () => this.play(), "aria-label": "play", class: "primary" }, "Play");
    this.label = h("output", { class: "step-label" });
    this.frame = h("div", { class: "frame", role: "img" });
    this.chart = h("div", { class: "strip" });
    this.talk = h("div", { class: "talk", "aria-live": "off" });
    const hasInvalid = Array.from({ length: this.last + 1 }, (_, step) => this.lines(step)).flat().some(isBad);
    const button = (text, act, title) => h("button", { onclick: act, title }, text);
    const numbers = [
      `return ${number(row.return)}`,
      plural(row.length ?? content.steps.length, "step"),
      row.success === undefined ? null : badge(row.success ? "success" : "no success", row.success ? "good" : ""),
      row.invalid ? badge(plural(row.invalid, "invalid reply").replace("replys", "replies"), "bad") : null,
    ];
    this.replaceChildren(
      h(
        "div",
        { class: "bar" },
        h("a", { href: link(`episodes/${run.key}`) }, "← Episodes"),
        h("strong", {}, `Episode ${content.episode}`),
        ...numbers.map((text) => (typeof text === "string" ? h("span", {}, text) : text)),
        h("span", { class: "faint" }, run.label),
        content.players > 1 ? h("label", {}, "Player ", this.choice) : null,
      ),
      h(
        "div",
        { class: "stage" },
        h(
          "div",
          { class: "left" },
          content.frames ? this.frame : h("p", { class: "faint none" }, "No video of this episode (play.videos)."),
          h(
            "div",
            { class: "controls" },
            button("‹", () => this.go(this.step - 1), "one step back (←)"),
            this.playing,
            button("›", () => this.go(this.step + 1), "one step on (→)"),
            this.scrub,
            this.label,
          ),
          this.chart,
          h(
            "div",
            { class: "controls" },
            hasInvalid ? button("Next invalid", () => this.nextInvalid(), "the next step with a bad reply (n)") : null,
            h("span", { class: "faint" }, `keys: ← → for a step, space to play${hasInvalid ? ", n for the next invalid reply" : ""}`),
          ),
        ),
        this.talk,
      ),
    );
    if (content.frames) this.sizeFrame();
  }

  sizeFrame() {
    const { width, height } = this.content.frames;
    Object.assign(this.frame.style, { aspectRatio: `${width} / ${height}`, maxWidth: `${Math.round(1.4 * width)}px` });
  }

  choosePlayer(player) {
    this.player = player;
    this.drawChart();
    this.go(this.step);
  }

  go(step) {
    this.step = Math.min(this.last, Math.max(0, Math.round(step) || 0));
    this.scrub.value = this.step;
    this.label.textContent = `step ${this.step} of ${this.last}`;
    this.drawFrame();
    this.drawTalk();
    this.mark();
    remember(`episode/${this.run.key}/${this.content.episode}`, {
      step: this.step || "",
      player: this.player || "",
    });
  }

  drawFrame() {
    const frames = this.content.frames;
    if (!frames) return;
    const picture = Math.min(this.step, frames.count - 1);
    const perSheet = frames.across * frames.down;
    const sheet = Math.floor(picture / perSheet);
    const [x, y] = [picture % frames.across, Math.floor((picture % perSheet) / frames.across)];
    const remaining = frames.count - sheet * perSheet;
    const rows = Math.min(frames.down, Math.ceil(remaining / frames.across));
    Object.assign(this.frame.style, {
      backgroundImage: `url("data/${this.run.key}/${frames.sheets[sheet]}")`,
      backgroundSize: `${frames.across * 100}% ${rows * 100}%`,
      backgroundPosition: `${(100 * x) / (frames.across - 1)}% ${rows > 1 ? (100 * y) / (rows - 1) : 0}%`,
    });
    this.frame.setAttribute("aria-label", `picture of step ${picture}`);
  }

  lines(step) {
    return this.content.steps[step] ?? [];
  }

  line(step) {
    return this.lines(step).find((line) => line.player === this.player);
  }

  drawTalk() {
    const line = this.line(this.step);
    const texts = this.content.texts;
    if (!line) {
      this.talk.replaceChildren(h("p", { class: "faint none" }, "This player was out of the game in this step."));
      return;
    }
    const action = typeof line.action === "string" ? line.action : JSON.stringify(line.action);
    const head = h(
      "dl",
      { class: "facts" },
      h("div", {}, h("dt", {}, "Action"), h("dd", { class: "action" }, action ?? "–")),
      h("div", {}, h("dt", {}, "Reward"), h("dd", {}, number(line.reward))),
      h("div", {}, h("dt", {}, "Return so far"), h("dd", {}, number(this.returns[this.step]))),
    );
    const parts = [head, ...this.badges(line)];
    if (line.observation !== undefined) parts.push(block("Observation", texts[line.observation], "observation"));
    if (line.lesson) parts.push(block("Lesson", line.lesson, "thought"));
    if (line.message) parts.push(block("Message", line.message, "thought"));
    if (line.plan) parts.push(block("Plan", line.plan, "thought"));
    if (line.reflection) parts.push(block("Reflection", line.reflection, "thought"));
    if (line.calls.length) {
      const talk = document.createElement("x-conversation");
      talk.show(line.calls, texts);
      parts.push(talk);
    } else if (line.reply !== undefined) parts.push(block("Reply", texts[line.reply], "reply"));
    this.talk.replaceChildren(...parts);
    this.talk.scrollTop = 0;
  }

  badges(line) {
    const badges = [];
    const errors = line.calls.filter((call) => call.valid === false).map((call) => call.parse_error || "cannot be parsed");
    for (const error of errors) badges.push(badge(`invalid: ${error}`, "bad"));
    if (line.invalid && !errors.length) badges.push(badge("invalid: the call log has no reason", "bad"));
    if (line.valid === false) badges.push(badge("no valid reply: this action is a fallback", "bad"));
    if (line.has_request === false) badges.push(badge("no call: the previous action continues", ""));
    return badges.length ? [h("p", { class: "badges" }, ...badges)] : [];
  }

  isInvalid(step) {
    const line = this.line(step);
    return Boolean(line && isBad(line));
  }

  nextInvalid() {
    for (let i = 1; i <= this.last + 1; i++) {
      const step = (this.step + i) % (this.last + 1);
      if (this.isInvalid(step)) return this.go(step);
    }
    this.label.textContent = `step ${this.step}: no invalid reply of this player`;
    return undefined;
  }

  play() {
    if (this.timer) {
      clearInterval(this.timer);
      this.timer = null;
    } else {
      if (this.step === this.last) this.go(0);
      this.timer = setInterval(() => (this.step < this.last ? this.go(this.step + 1) : this.play()), PLAY_MS);
    }
    this.playing.textContent = this.timer ? "Pause" : "Play";
  }

  key(event) {
    if (event.target.matches?.("input:not([type=range]), select, textarea, summary, button") && event.key === " ") return;
    if (event.target.matches?.("input:not([type=range]), select, textarea")) return;
    const actions = {
      ArrowLeft: () => this.go(this.step - 1),
      ArrowRight: () => this.go(this.step + 1),
      Home: () => this.go(0),
      End: () => this.go(this.last),
      " ": () => this.play(),
      n: () => this.nextInvalid(),
    };
    if (!(event.key in actions) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  }

  /** Draws the reward of each step as bars, and the cumulative reward as a line. */
  drawChart() {
    let sum = 0;
    const steps = this.content.steps.map((_, i) => {
      const reward = this.line(i)?.reward ?? 0;
      sum += reward;
      return { step: i, reward, sum, invalid: this.isInvalid(i) };
    });
    this.returns = steps.map((step) => step.sum);
    const width = this.chart.clientWidth || 480;
    if (width === this.drawn?.width && this.player === this.drawn.player) return;
    this.drawn = { width, player: this.player };
    const x = { domain: [-0.5, this.last + 0.5], label: null };
    // The domain contains 0; it is [-1, 1] if all values are 0, because a domain must not be empty.
    const yScale = (name) => {
      const [low, high] = d3.extent([0, ...steps.map((d) => d[name])]);
      return { label: null, ticks: 3, nice: true, grid: true, domain: low < high ? [low, high] : [-1, 1] };
    };
    const shared = { width, marginLeft: 44, marginRight: 8, style: { background: "none" }, x };
    this.plots = [
      Plot.plot({
        ...shared,
        height: 74,
        marginBottom: 6,
        x: { ...x, axis: null },
        y: yScale("reward"),
        marks: [
          Plot.rectY(steps.filter((d) => d.reward), { x1: (d) => d.step - 0.45, x2: (d) => d.step + 0.45, y: "reward", fill: css("--accent") }),
          Plot.dot(steps.filter((d) => d.invalid), { x: "step", y: 0, fill: css("--bad"), r: 3, symbol: "triangle" }),
          Plot.text(["reward"], { frameAnchor: "top-left", dx: 4, fill: css("--faint") }),
        ],
      }),
      Plot.plot({
        ...shared,
        height: 92,
        marginBottom: 24,
        y: yScale("sum"),
        marks: [
          Plot.lineY(steps, { x: "step", y: "sum", stroke: css("--second"), strokeWidth: 1.75 }),
          Plot.text(["return so far"], { frameAnchor: "top-right", dx: -4, fill: css("--faint") }),
        ],
      }),
    ];
    for (const plot of this.plots) {
      const { apply, invert } = plot.scale("x");
      plot.marker = document.createElementNS("http://www.w3.org/2000/svg", "line");
      const height = Number(plot.getAttribute("height"));
      for (const [name, value] of Object.entries({ class: "marker", y1: 0, y2: height - 4 }))
        plot.marker.setAttribute(name, value);
      plot.append(plot.marker);
      plot.place = apply;
      plot.addEventListener("click", (event) => {
        const box = plot.getBoundingClientRect();
        this.go(invert(((event.clientX - box.left) * width) / box.width));
      });
    }
    this.chart.replaceChildren(...this.plots);
    this.mark();
  }

  mark() {
    for (const plot of this.plots ?? []) {
      plot.marker.setAttribute("x1", plot.place(this.step));
      plot.marker.setAttribute("x2", plot.place(this.step));
    }
  }
}
customElements.define("x-episode", Episode);
