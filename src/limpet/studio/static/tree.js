// JSON as a tree that opens lazily, and as text for what is short.

import { h, bytes, count, visible } from "./dom.js";

const AT_ONCE = 100;
const TEXT_SHOWN = 4_000;

const holds = (value) => value !== null && typeof value === "object";
const size = (value) => (Array.isArray(value) ? value.length : Object.keys(value).length);

export function brief(value, most = 120) {
	let text = typeof value === "string" ? JSON.stringify(value.slice(0, most + 1)) : JSON.stringify(value) ?? "";
	if (text.length > most) text = `${text.slice(0, most)}…`;
	return text;
}

/** A change of the state in words: mood = "calm". */
export const opText = ([kind, path, ...rest]) => [path.join("."), kind === "set" ? "=" : kind, ...rest.map((each) => brief(each, 80))].join(" ");

/** A text that may be long: the beginning, and the rest when it is asked for. */
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

/** A tree. `pick(path)` makes names buttons, `marks` says what was added or modified, by the JSON of
 * its path, and `toggled` remembers what is open. */
export function tree(value, options = {}, path = []) {
	if (!holds(value)) return scalar(value);
	if (!size(value)) return h("span.null", Array.isArray(value) ? "[ ]" : "{ }");
	const names = Array.isArray(value) ? value.map((_, at) => at) : Object.keys(value);
	const list = h("ul.tree");
	let shown = 0;
	const more = h("li", h("button.link", { onclick: add }));
	function add() {
		more.remove();
		for (const name of names.slice(shown, shown + AT_ONCE)) list.append(row(value[name], options, [...path, name]));
		shown += AT_ONCE;
		if (shown < names.length) {
			more.firstChild.textContent = `${count(names.length - shown)} more`;
			list.append(more);
		}
	}
	add();
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
	show(options.toggled?.get(key) ?? (path.length < 2 && size(value) <= 20));
	item.append(toggle, name, h("span.null", Array.isArray(value) ? `[${size(value)}]` : `{${size(value)}}`), inside);
	return item;
}

function scalar(value) {
	if (typeof value === "string") return h("span.string", longText(value));
	return h(`span.${value === null ? "null" : typeof value}`, String(value));
}

/** How two values differ: [{ path, kind, old, new }], as the server's diff has it. */
export function difference(a, b, path = []) {
	if (a === b) return [];
	if (!holds(a) || !holds(b) || Array.isArray(a) !== Array.isArray(b)) {
		if (JSON.stringify(a) === JSON.stringify(b)) return [];
		return [{ path, kind: a === undefined ? "add" : b === undefined ? "remove" : "modify", old: a, new: b }];
	}
	const names = new Set([...Object.keys(a), ...Object.keys(b)]);
	return [...names].flatMap((name) => difference(a[name], b[name], [...path, Array.isArray(a) ? Number(name) : name]));
}

export function changes(found, pick) {
	if (!found.length) return h("p.quiet", "Nothing is different.");
	return h("ul.changes", found.slice(0, 200).map((each) =>
		h(`li.${each.kind}`, h("button.name", { onclick: () => pick?.(each.path) }, each.path.join(".") || "(everything)"), " ",
			each.kind !== "add" && h("del", brief(each.old)), each.kind === "modify" && " → ", each.kind !== "remove" && h("ins", brief(each.new)))),
		found.length > 200 && h("li.quiet", `${count(found.length - 200)} more`));
}
