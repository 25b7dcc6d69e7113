// Creation of elements, number formats, and loading of data by script tags: pages from file:// URLs cannot use fetch.

/** Creates an element. Strings become text, never markup, because models and files may contain any text. */
function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "style") Object.assign(element.style, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const pendingLoads = new Map();
const loaded = new Map();

globalThis.llmrlTake = (key, content) => {
  loaded.set(key, content);
  pendingLoads.get(key)?.resolve(content);
};

/** Returns a promise of the content of data/<file>.js, which calls llmrlTake(key, content). */
function load(key, file) {
  if (loaded.has(key)) return Promise.resolve(loaded.get(key));
  if (!pendingLoads.has(key)) {
    const promise = Promise.withResolvers ? Promise.withResolvers() : withResolvers();
    pendingLoads.set(key, promise);
    const script = document.createElement("script");
    script.src = `data/${file}.js`;
    script.onerror = () => {
      pendingLoads.delete(key);
      promise.reject(new Error(`data/${file}.js is missing: run llmrl-report --explore again`));
    };
    script.onload = () => script.remove();
    document.head.append(script);
  }
  return pendingLoads.get(key).promise;
}

function withResolvers() {
  const resolvers = {};
  resolvers.promise = new Promise((resolve, reject) => Object.assign(resolvers, { resolve, reject }));
  return resolvers;
}

/** Maximum number of files with episodes or conversations in memory; those that were used least recently are dropped. */
const MAX_PARTS = 12;
async function loadPart(run, part) {
  const key = `${run}/${part}`;
  const content = await load(key, `${run}/${part}`);
  loaded.delete(key);
  loaded.set(key, content);
  const parts = [...loaded.keys()].filter((loadedKey) => loadedKey.includes("/"));
  for (const oldKey of parts.slice(0, Math.max(0, parts.length - MAX_PARTS))) {
    loaded.delete(oldKey);
    pendingLoads.delete(oldKey);
  }
  return content;
}

const loadRun = (run) => load(run, `${run}/run`);

function number(x, digits = 4) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  if (Number.isInteger(x)) return x.toLocaleString("en");
  return Number(x.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 6 });
}

/**
 * Returns short labels of runs by key: the parts between slashes in which labels differ, and the last part. Words that
 * occur in all labels are omitted, and hashes, too, if the labels still differ without them.
 */
function shortLabels(runs, label = (run) => run.label) {
  const parts = runs.map((run) => label(run).split("/"));
  const differs = (i) => new Set(parts.map((labelParts) => labelParts[i])).size > 1;
  const differing = parts.map((labelParts) => labelParts.filter((_, i) => i === labelParts.length - 1 || differs(i)));
  const words = differing.map((labelParts) => labelParts.map((part) => part.split("-")));
  const shared = (word) => words.every((labelWords) => labelWords.flat().includes(word));
  const without = (isExcluded) =>
    words.map((labelWords) => {
      const texts = labelWords.map((part) => part.filter((word) => /^s\d+$/.test(word) || !isExcluded(word)).join(" "));
      return texts.filter(Boolean).join(" / ");
    });
  const isHash = (word) => /^[0-9a-f]{8}$/.test(word);
  const all = differing.map((labelParts) => labelParts.join(" / "));
  const choices = [without((word) => shared(word) || isHash(word)), without(shared), all];
  const labels = choices.find((names) => names.every(Boolean) && new Set(names).size === new Set(all).size);
  return new Map(runs.map((run, n) => [run.key, labels[n]]));
}

const plural = (n, word) => `${number(n)} ${word}${n === 1 ? "" : "s"}`;

function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

const STATES = { finished: "good", running: "busy", queued: "busy", failed: "bad", lost: "bad", unreadable: "bad" };

/** Returns the path and the parameters in the fragment of the URL, e.g. #/episode/r0/3?step=4. */
function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").filter(Boolean), query: new URLSearchParams(query) };
}

function link(path, query = {}) {
  const parameters = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== null));
  return `#/${path}${[...parameters].length ? `?${parameters}` : ""}`;
}

/** Stores the present view in the URL without a navigation. */
function remember(path, query) {
  history.replaceState(null, "", link(path, query));
}

function matches(text, filter) {
  const lowerText = text.toLowerCase();
  return filter.toLowerCase().split(/\s+/).filter(Boolean).every((word) => lowerText.includes(word));
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
