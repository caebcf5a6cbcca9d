// How each kind of event looks: a message, a tool's card, an effect, an error, a line.

import { h, chip, clock, compact, money, state, visible } from "./dom.js";
import { Remote } from "./api.js";
import { brief, longText, tree } from "./tree.js";

export const CONVERSATION = ["user.*", "agent.*", "system.*", "session.*", "effect.*"];
const QUIET = new Set(["session.status_changed", "session.created", "agent.tool_result"]);

/** True if a row of its own shows this event in the conversation. */
export const speaks = (event) => !QUIET.has(event.type);

export function textOf(data) {
  if (typeof data?.text === "string") return data.text;
  if (!Array.isArray(data?.content)) return null;
  return data.content.map((part) => part.text ?? `[${part.type}]`).join("\n");
}

const who = (actor) => visible(String(actor));
const at = (event) => h("button.seq", { "data-seq": event.seq, title: `Event ${event.seq}, ${event.at}` }, h("span", `#${event.seq}`), ` ${clock(event.at)}`);
const note = (data) => data?.note && h("q", visible(data.note));

/** The row of an event in the conversation; `whole()` reads an event that was cut. */
export function conversationRow(event, log) {
  const data = event.data ?? {};
  if (event.damage || event.removed) return line(event, "bad", event.removed ? "removed by retention" : `cannot be read: ${event.damage}`);
  const make = ROWS[event.type];
  if (make) return make(event, data, log);
  if (event.type.startsWith("effect.")) return effect(event, data);
  if (event.type.endsWith(".message")) return message(event, data, log);
  return line(event, "", `${event.type.replace("session.", "").replaceAll("_", " ")} ${Object.keys(data).length ? brief(data, 90) : ""}`);
}

function line(event, kind, ...content) {
  return h(`div.line${kind ? `.${kind}` : ""}`, h("span.dot"), h("span.what", content), h("span.by", who(event.actor)), at(event));
}

function message(event, data, log) {
  const role = event.type.split(".")[0];
  const text = textOf(data) ?? "";
  const usage = data.usage && h("span.usage", `${compact(data.usage.input ?? 0)} in · ${compact(data.usage.output ?? 0)} out`, data.cost ? ` · ${money(data.cost)}` : "");
  if (role === "agent" && !text.trim()) return line(event, "", "the model called tools ", usage);
  const whole = event.brief && (async () => textOf((await log.whole(event.seq)).data) ?? "");
  return h(`article.message.${role}`, { "aria-label": `${event.actor} said` },
    h("header", h("b", who(event.actor)), event.processed === 0 && chip("pending", "warn"), at(event)),
    h("div.body", longText(text, whole)),
    (usage || data.model) && h("footer", usage, data.model && chip(visible(data.model))));
}

function card(event, kind, title, ...body) {
  return h(`article.card${kind ? `.${kind}` : ""}`, h("header", title, at(event)), body);
}

const json = (label, value) =>
  h("details.json", { open: JSON.stringify(value ?? null).length < 240 }, h("summary", label),
    value !== null && typeof value === "object" ? tree(value) : h("div.string", longText(String(value ?? "null"))));

function toolUse(event, data) {
  const unknown = data.kind === "unknown_effect" || data.input?.idempotency_key;
  const made = card(event, `tool${unknown ? ".unsure" : ""}`, [h("b", visible(data.name ?? "?")),
    data.permission === "ask" && chip("asks first", "warn"), data.permission === "deny" && chip("denied", "bad"), h("span.result")], json("input", data.input), h("div.output"));
  if (unknown) made.querySelector(".output").append(h("p.warning", "It may have happened: nobody knows whether this was done. Check the other system before you answer."));
  made.dataset.request = data.request_id;
  return made;
}

/** Put an event that belongs to a card into it. True if there was one. */
export function joins(event, find) {
  const data = event.data ?? {};
  if (event.type === "agent.tool_result" || event.type === "user.custom_tool_result") {
    const card = find("request", data.request_id);
    if (!card) return false;
    fillResult(card, event, data);
    return event.type === "agent.tool_result";
  }
  if (event.type.startsWith("effect.")) {
    const card = (data.call && find("request", data.call)) || find("effect", data.key);
    if (!card) return false;
    const shown = card.querySelector(".result");
    shown.replaceChildren(chip("effect", ""), state(event.type.slice(7)));
    shown.title = `idempotency key ${data.key}`;
    if (data.error) card.querySelector(".output").replaceChildren(h("p.warning", visible(data.error)));
    else if (data.result !== undefined && !data.call) card.querySelector(".output").replaceChildren(json("result", data.result));
    card.dataset.effect = data.key;
    return true;
  }
  return false;
}

function fillResult(card, event, data) {
  card.classList.toggle("bad", Boolean(data.is_error));
  const shown = card.querySelector(".result");
  if (!shown.firstChild) shown.replaceChildren(state(data.is_error ? "error" : "success"));
  card.querySelector(".output").replaceChildren(json(data.is_error ? "error" : "output", data.output), at(event));
}

function effect(event, data) {
  const made = card(event, "tool.effect", [h("b", visible(data.name ?? "?")), h("span.result", chip("effect"), state(event.type.slice(7)))],
    data.args && json("input", data.args), h("div.output", data.error && h("p.warning", visible(data.error)), data.result !== undefined && json("result", data.result)));
  made.dataset.effect = data.key;
  return made;
}

function idle(event, data) {
  const reason = data.stop_reason ?? "end_turn";
  const words = { end_turn: "the turn ended", requires_action: "waits for an answer", retries_exhausted: "gave up after its last attempt",
    rescheduling: "will try again", budget_reached: "the budget is used up", interrupted: "was interrupted", terminated: "was terminated" };
  return h(`div.rule.${reason}`, h("span", words[reason] ?? reason), data.summary && h("small", visible(data.summary).slice(0, 200)), at(event));
}

function error(event, data) {
  return card(event, "bad", [h("b", visible(data.code ?? "error")), chip(`attempt ${data.attempt ?? 1}`)],
    h("p", visible(data.message ?? "")), data.retry_at && h("p.quiet", `It is tried again ${data.retry_at}.`),
    data.traceback && h("details", h("summary", "traceback"), h("pre", visible(data.traceback))));
}

function child(event, data, _log, ended) {
  const remote = data.app && data.user && Remote.of({ app: data.app, user: data.user, id: data.child });
  return card(event, "child", [h("b", visible(data.title ?? (ended ? "A child ended" : "A child began"))), ended && state(data.stop_reason ?? "ended")],
    remote && h("a", { href: remote.href }, visible(remote.name)), ended && data.output !== undefined && json("output", data.output));
}

const ROWS = {
  "agent.tool_use": toolUse,
  "agent.custom_tool_use": toolUse,
  "agent.tool_result": (event, data) => {
    const made = card(event, "tool", [h("b", "result"), h("span.result")], h("div.output"));
    fillResult(made, event, data);
    return made;
  },
  "session.status_idle": idle,
  "session.error": error,
  "session.child_created": child,
  "session.child_ended": (event, data, log) => child(event, data, log, true),
  "user.tool_confirmation": (event, data) => line(event, data.allow ? "good" : "bad", h("b", data.allow ? "allowed" : "denied"), " ", note(data)),
  "user.interrupt": (event, data) => line(event, "warn", h("b", "interrupted"), " ", note(data)),
};

/** The row of an event among all of them: one line that opens. */
export function logRow(event, log) {
  const body = h("div.body");
  const details = h("details", {
    async ontoggle() {
      if (!details.open || body.firstChild) return;
      const whole = event.brief ? await log.whole(event.seq) : event;
      const { seq, type, actor, at: time, data, ops, link, ...rest } = whole;
      const more = Object.fromEntries(Object.entries(rest).filter(([name, value]) => value && name !== "brief"));
      body.append(data === null ? h("p.warning", visible(event.damage ?? "it cannot be read")) : tree(data),
        ops.length ? json("changes of the state", ops) : "", json("more", { ...more, link }));
    },
  }, h("summary", at(event), h(`span.type.${event.type.split(".")[0]}`, visible(event.type)), h("span.what", brief(event.data, 160)), h("span.by", who(event.actor))), body);
  return h("div.entry", details);
}

/** Text that is not recorded yet. */
export function partialRow(id) {
  const text = h("span.text");
  return h("article.message.agent.partial", { "data-partial": id, "aria-busy": "true" },
    h("header", h("b", "agent"), chip("writing", "info")), h("div.body", text, h("span.caret")));
}

