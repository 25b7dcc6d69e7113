// Requests to a model, its thoughts and replies, and the results of parsing the replies.

function block(title, text, kind = "") {
  return h("section", { class: `block ${kind}` }, h("h4", {}, title), h("pre", {}, text));
}

/** Returns collapsed messages; their texts, which may be long, are added when the user expands them. */
function folded(title, messages, texts) {
  const details = h("details", { class: "folded" }, h("summary", {}, title));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1)
      details.append(...messages.map(([role, text]) => block(role, texts[text] ?? "", role)));
  });
  return details;
}

function asJson(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 1);
}

function verdict(call) {
  if (call.error) return badge(`no reply: ${call.error}`, "bad");
  if (call.valid === true) return badge("valid", "good");
  if (call.valid === false) return badge(`invalid: ${call.parse_error || "cannot be parsed"}`, "bad");
  return badge("not parsed", "");
}

/** Returns the elements of a call without its first nEarlier messages. */
function callParts(call, nEarlier, texts) {
  const messages = call.messages.slice(nEarlier);
  const system = messages.filter(([role]) => role === "system");
  const others = messages.filter(([role]) => role !== "system");
  const parts = [];
  if (system.length) parts.push(folded("System message", system, texts));
  if (others.length > 1) parts.push(folded(plural(others.length - 1, "earlier turn"), others.slice(0, -1), texts));
  if (others.length) parts.push(block("Prompt", texts[others.at(-1)[1]] ?? "", "prompt"));
  if (call.thought) parts.push(block("Thought", call.thought, "thought"));
  if (call.reply !== null && call.reply !== undefined) parts.push(block("Reply", call.reply, "reply"));
  parts.push(h("p", { class: "verdict" }, verdict(call), h("span", { class: "faint" }, usage(call))));
  if (call.valid) parts.push(block("Parsed as", asJson(call.parsed_reply), "understood"));
  return parts;
}

/** Returns a text with the model, tokens, cost and stop reason of a call. */
function usage(call) {
  const [promptTokens, replyTokens] = call.tokens;
  const texts = [call.model];
  if (promptTokens !== null || replyTokens !== null) texts.push(`${number(promptTokens)} + ${number(replyTokens)} tokens`);
  if (call.cached) texts.push("from the cache");
  else if (call.cost) texts.push(`$${number(call.cost, 3)}`);
  if (call.finish && call.finish !== "stop") texts.push(`ended by ${call.finish}`);
  return texts.filter(Boolean).join(" · ");
}

/** <x-conversation>: a call and its repairs, of which only the messages after those of the previous call are shown. */
class Conversation extends HTMLElement {
  show(calls, texts) {
    const parts = calls.map((call, i) => {
      const nEarlier = i ? Math.min(calls[i - 1].messages.length, call.messages.length - 1) : 0;
      const title = i ? h("h3", {}, `Repair ${i}`) : null;
      return h("article", { class: "call" }, title, ...callParts(call, nEarlier, texts));
    });
    this.replaceChildren(...parts);
  }
}
customElements.define("x-conversation", Conversation);
