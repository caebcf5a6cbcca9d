// How each kind of event looks: a message, a tool's card, an effect, an error, a line.

import { h, one, ago, anchor, chip, clear, clock, compact, link, money, quiet, state, template, SAY } from "./dom.js";
import { Remote } from "./api.js";
import { brief, longText, opText, tree } from "./tree.js";

export const CONVERSATION = ["user.*", "agent.*", "system.*", "session.*", "effect.*"];
export const speaks = ({ type }) => /^(user|agent|system|effect)\.|^session\.(?!(status_changed|created)$)/.test(type);

export function textOf(data) {
	if (typeof data?.text === "string") return data.text;
	if (!Array.isArray(data?.content)) return null;
	return data.content.map((part) => part?.text ?? `[${part?.type}]`).join("\n");
}

// Data may have any shape: what is not a text is shown as JSON.
const text = (value) => (typeof value === "string" ? value : JSON.stringify(value) ?? "");
const bold = (value) => h("b", text(value));
const at = (event) => h("button.seq", { "data-seq": event.seq, title: `Event ${event.seq}, ${event.at}` }, `#${event.seq} ${clock(event.at)}`);
const line = (event, kind, ...content) => h(`div.line.${kind}`, h("span.dot"), h("span.what", content), h("span.by", event.actor), at(event));
const card = (event, kind, title, ...body) => h(`article.card.${kind}`, h("header", title, at(event)), body);
const warning = (value) => value && h("p.warning", text(value));
const quote = (value) => value && h("q", text(value));
const outcome = (event) => [chip("effect"), " ", state(event.type.slice(7))];
const unsure = () => warning("It may have happened.");

/** Reads what was cut from an event. */
const rest = (event, pick) => event?.brief && (async () => pick((await event.whole()).data));

function json(label, value, event, name) {
	const whole = rest(event, (it) => it[name]);
	const body = h("div", tree(value ?? null, { whole }), whole && typeof value !== "string" && link("Show all", async () => clear(body, tree(await whole()))));
	return h("details.json", { open: text(value).length < 240 || label === "error" }, h("summary", label), body);
}

export function conversationRow(event) {
	const data = event.data ?? {};
	const [family, name] = event.type.split(".");
	try {
		if (event.damage || event.removed) return line(event, "bad", event.removed ? "removed by retention" : `cannot be read: ${event.damage}`);
		if (ROWS[event.type]) return ROWS[event.type](event, data);
		if (family === "effect") return effect(event, data);
		if (name === "message") return message(event, data);
		return line(event, "", bold(`${family === "session" ? "" : `${family} `}${name.replaceAll("_", " ")} `), quote(data.reason || data.output) || (!data.from && Object.keys(data).length > 0 && brief(data, 90)));
	} catch {
		return logRow(event);
	}
}

function message(event, data) {
	const role = event.type.split(".")[0];
	const said = textOf(data) ?? "";
	const usage = data.usage && h("span.usage", `${compact(data.usage.input ?? 0)} in · ${compact(data.usage.output ?? 0)} out`, data.cost && ` · ${money(data.cost)}`);
	if (role === "agent" && !said.trim()) return line(event, "", "the model called tools ", usage);
	return h(`article.message.${role}`, h("header", bold(event.actor), event.processed === 0 && state("pending"), at(event)),
		h("div.body", longText(said, rest(event, textOf))), (usage || data.model) && h("footer", usage, data.model && chip(text(data.model))));
}

function toolUse(event, data) {
	const unknown = data.awaits === "unknown_effect";
	const made = card(event, unknown ? "tool.unsure" : "tool", [bold(data.name), h("span.asks"), h("span.result")], json("input", data.input, event, "input"),
		h("div.output", unknown && unsure()));
	made.dataset.request = data.request_id;
	if (!unknown) asks(made, data);
	return made;
}

function asks(made, data) {
	if (data.permission === "ask") one(made, ".asks").replaceChildren(chip("asks first", "warn"));
	if (data.permission === "deny") one(made, ".asks").replaceChildren(chip("denied", "bad"));
}

/** The card that an event belongs to, with it; null if it needs a row. */
export function joined(event, find) {
	const data = event.data ?? {};
	if (event.type === "agent.tool_result" || event.type === "agent.tool_use") {
		let made = find("request", data.request_id);
		if (!made && data.awaits === "unknown_effect" && (made = find("effect", data.input?.idempotency_key))) {
			made.dataset.request = data.request_id;
			made.classList.add("unsure");
			one(made, ".output").prepend(unsure());
		} else if (made && data.name) asks(made, data);
		else if (made) result(made, event, data);
		return made;
	}
	if (!event.type.startsWith("effect.")) return null;
	const made = find("request", data.call) ?? find("effect", data.key);
	if (!made) return null;
	made.dataset.effect = data.key;
	one(made, ".result").replaceChildren(...outcome(event));
	const said = data.error ? warning(data.error) : data.result !== undefined && !data.call && json("result", data.result, event, "result");
	if (said) one(made, ".output").replaceChildren(said);
	return made;
}

function result(made, event, data) {
	made.classList.remove("unsure");
	const shown = one(made, ".result");
	if (!shown.firstChild) shown.append(state(data.is_error ? "error" : "success"));
	one(made, ".output").replaceChildren(json(data.is_error ? "error" : "output", data.output, event, "output"), at(event));
}

function effect(event, data) {
	const made = card(event, "tool", [bold(data.name), h("span.result", outcome(event))], data.args && json("input", data.args),
		h("div.output", warning(data.error), data.result !== undefined && json("result", data.result, event, "result")));
	made.dataset.effect = data.key;
	return made;
}

function child(event, data) {
	const ended = event.type.endsWith("ended");
	const remote = data.app && new Remote({ app: text(data.app), user: text(data.user), id: text(data.child) });
	return card(event, "child", [bold(data.title ?? `A child ${ended ? "ended" : "began"}`), ended && state(text(data.stop_reason))],
		remote && anchor(remote), ended && data.output !== undefined && json("output", data.output, event, "output"));
}

const ROWS = {
	"agent.tool_use": toolUse,
	"agent.custom_tool_use": toolUse,
	"agent.tool_result": (event, data) => {
		const made = card(event, "tool", [bold("result"), h("span.result")], h("div.output"));
		result(made, event, data);
		return made;
	},
	"session.status_idle": (event, data) => h(`div.rule.${data.stop_reason}`, h("span", SAY[data.stop_reason] ?? text(data.stop_reason)), data.summary && h("small", text(data.summary).slice(0, 200)), at(event)),
	"session.error": (event, data) => card(event, "bad", [bold(data.code), chip(`attempt ${data.attempt ?? 1}`)], h("p", text(data.message)), data.retry_at && quiet("Retry due ", ago(data.retry_at)),
		data.traceback && h("details", h("summary", "traceback"), h("pre", longText(text(data.traceback), rest(event, (it) => it.traceback))))),
	"session.child_created": child,
	"session.child_ended": child,
	"session.related": (event, data) => line(event, "", bold(`${text(data.kind)} ${text(data.direction)} `), anchor(new Remote(data))),
	"session.revisit_set": (event, data) => line(event, "warn", bold("comes back "), data.at_us ? ago(new Date(data.at_us / 1000).toISOString()) : "", ` ${text(data.reason ?? "")}`),
	"session.rewound": (event, data) => line(event, "info", bold("went back "), `to event ${text(data.at)}`),
	"user.tool_confirmation": (event, data) => line(event, data.allow ? "good" : "bad", bold(data.allow ? "allowed " : "denied "), quote(data.note)),
	"user.interrupt": (event, data) => line(event, "warn", bold("interrupted "), quote(data.note)),
};

/** An event as one line that opens. */
export function logRow(event) {
	const body = h("div.body");
	const details = h("details", {
		async ontoggle() {
			if (!details.open || body.firstChild) return;
			const { seq, type, actor, at: time, data, ops, whole, ...rest } = event.brief ? await event.whole() : event;
			const more = Object.fromEntries(Object.entries(rest).filter(([, value]) => value));
			body.append(data === null ? warning(event.damage ?? "it cannot be read") : tree(data), ops.length ? json("changes of the state", ops) : "", json("more", more));
		},
	}, h("summary", h(`span.type.of-${event.type.split(".")[0]}`, event.type), h("span.what", Object.keys(event.data ?? {}).length ? brief(event.data, 160) : event.ops?.map(opText).join(", ")), h("span.by", event.actor)), body);
	return h("div.entry", at(event), details);
}

export const partialRow = () => template("partial").firstChild;
