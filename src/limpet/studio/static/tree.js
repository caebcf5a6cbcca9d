// JSON as a tree that opens lazily, and as text for what is short.

import { h, bytes, count, visible } from "./dom.js";

const AT_ONCE = 100;
const TEXT_SHOWN = 4_000;

const holds = (value) => value !== null && typeof value === "object";
const size = (value) => (Array.isArray(value) ? value.length : Object.keys(value).length);

export function brief(value, most = 120) {
	const text = JSON.stringify(typeof value === "string" ? value.slice(0, most + 1) : value) ?? "";
	return text.length > most ? `${text.slice(0, most)}…` : text;
}

/** A change of the state in words: mood = "calm". */
export const opText = ([kind, path, ...rest]) => [path.join("."), kind === "set" ? "=" : kind, ...rest.map((it) => brief(it, 80))].join(" ");

/** A long text: its beginning; the rest on request. */
export function longText(text, whole) {
	const shown = h("span.text", text.slice(0, TEXT_SHOWN));
	if (text.length <= TEXT_SHOWN && !whole) return shown;
	const more = h("button.link", {
		async onclick() {
			const full = whole ? await whole() : text;
			const at = (more.shown ?? TEXT_SHOWN) + 50_000;
			shown.textContent = visible(full.slice(0, at));
			more.shown = at;
			if (full.length <= at) more.remove();
			else more.textContent = `Show more of ${bytes(full.length)}`;
		},
	}, whole ? "Show all" : `Show more of ${bytes(text.length)}`);
	return [shown, " ", more];
}

/** A tree. `pick(path)` makes names buttons, `marks` has what changed by the JSON of its path,
 * `toggled` remembers what is open; with `open`, all is; `whole` reads a text that was cut. */
export function tree(value, options = {}, path = []) {
	if (!holds(value)) return scalar(value, !path.length && options.whole);
	if (!size(value)) return h("span.null", Array.isArray(value) ? "[ ]" : "{ }");
	const names = Array.isArray(value) ? value.map((_, at) => at) : Object.keys(value);
	const list = h("ul.tree");
	const key = JSON.stringify([path]); // of how many are shown
	let shown = 0;
	const more = h("li", h("button.link", { onclick: add }));
	function add() {
		more.remove();
		for (const name of names.slice(shown, (shown += AT_ONCE))) list.append(row(value[name], options, [...path, name]));
		options.toggled?.set(key, shown);
		if (shown < names.length) {
			more.firstChild.textContent = `${count(names.length - shown)} more`;
			list.append(more);
		}
	}
	const before = options.toggled?.get(key);
	do add(); while (shown < before);
	return list;
}

function row(value, options, path) {
	const key = JSON.stringify(path);
	const mark = options.marks?.get(key);
	const label = String(path.at(-1));
	const item = h(`li.${mark ?? "same"}`);
	const name = options.pick ? h("button.name", { onclick: () => options.pick(path), title: "Who changed this?" }, label) : h("span.name", label);
	if (!holds(value) || !size(value)) return item.appendChild(h("span.leaf", name, tree(value, options, path))), item;
	const inside = h("div");
	const toggle = h("button.toggle", { onclick: () => show(!open), "aria-label": `Open ${visible(label)}` });
	let open;
	function show(wanted) {
		open = wanted;
		options.toggled?.set(key, open);
		toggle.setAttribute("aria-expanded", open);
		inside.hidden = !open;
		if (open && !inside.firstChild) inside.append(tree(value, options, path));
	}
	show(options.toggled?.get(key) ?? (options.open || (path.length < 2 && size(value) <= 20)));
	item.append(toggle, name, h("span.null", Array.isArray(value) ? `[${size(value)}]` : `{${size(value)}}`), inside);
	return item;
}

function scalar(value, whole) {
	if (typeof value === "string") return h("span.string", longText(value, whole));
	return h(`span.${value === null ? "null" : typeof value}`, String(value));
}

export function changes(found, pick) {
	if (!found.length) return h("p.quiet", "Nothing is different.");
	return h("ul.changes", found.slice(0, 200).map((it) =>
		h(`li.${it.kind}`, h(pick ? "button.name" : "b", { onclick: pick && (() => pick(it.path)) }, it.path.join(".") || "(everything)"), " ",
			it.kind !== "add" && h("del", brief(it.old)), it.kind === "modify" && " → ", it.kind !== "delete" && h("ins", brief(it.new)))),
		found.length > 200 && h("li.quiet", `${count(found.length - 200)} more`));
}
