// Elements, and texts for people. Text of sessions becomes text nodes here, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element: h("a.button", { href, onclick }, "text", child, [children]). */
export function h(name, props, ...children) {
	const [tag, ...classes] = name.split(".");
	return fill(document.createElement(tag || "div"), classes, props, children);
}

export function s(name, props, ...children) {
	const [tag, ...classes] = name.split(".");
	return fill(document.createElementNS(SVG, tag), classes, props, children);
}

function fill(element, classes, props, children) {
	if (props instanceof Node || typeof props === "string" || Array.isArray(props)) {
		children.unshift(props);
		props = null;
	}
	if (classes.length) element.setAttribute("class", classes.join(" "));
	for (const [name, value] of Object.entries(props ?? {})) {
		if (value == null || value === false) continue;
		if (typeof value === "function") element.addEventListener(name.slice(2), value);
		else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
		else element.setAttribute(name, value === true ? "" : value);
	}
	element.append(...shown(children));
	return element;
}

/** What is put into the page: nothing for false and null; every text with what hides in it shown. */
const shown = (children) => children.flat(4).filter(Boolean).map((each) => (each instanceof Node ? each : visible(each)));

export function clear(element, ...children) {
	element.replaceChildren(...shown(children));
	return element;
}

/** Fill a place with what is read: an error is shown there, with a way to try again. */
export async function into(place, read) {
	try {
		const made = await read();
		if (made) clear(place, made);
	} catch (error) {
		clear(place, failure(error, () => into(place, read)));
	}
}

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|\udb40[\udc00-\udc7f]/g;

/** Text with what is invisible or changes direction made visible. */
export const visible = (text) => String(text).replace(HIDDEN, (each) => `⟦U+${each.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟧`);

// --- numbers and times

export const count = (number) => Number(number ?? 0).toLocaleString("en-US");

const SHORT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
export const compact = (number) => (number < 10_000 ? count(number) : SHORT.format(number));
export const money = (cost) => (cost ? `$${cost < 0.1 ? cost.toFixed(4) : cost.toFixed(2)}` : "$0");
export const bytes = (size) => (size < 1e6 ? `${(size / 1e3).toFixed(0)} KB` : `${(size / 1e6).toFixed(1)} MB`);

export function span(seconds) {
	const size = Math.abs(seconds);
	if (size < 1) return size < 0.001 ? "< 1 ms" : `${Math.round(size * 1000)} ms`;
	if (size < 60) return `${size.toFixed(size < 10 ? 1 : 0)} s`;
	if (size < 3600) return `${Math.floor(size / 60)} min`;
	if (size < 86400) return `${Math.floor(size / 3600)} h ${Math.floor((size % 3600) / 60)} min`;
	return `${Math.floor(size / 86400)} d ${Math.floor((size % 86400) / 3600)} h`;
}

export const since = (at) => (Date.now() - Date.parse(at)) / 1000;
export const clock = (at) => new Date(at).toLocaleTimeString("en-GB");

export function when(at) {
	const day = new Date(at);
	const today = day.toDateString() === new Date().toDateString();
	return today ? clock(at) : `${day.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${clock(at)}`;
}

/** A time that says how long ago it was, and the whole time on hover. */
export const ago = (at) => h("time", { datetime: at, title: at, "data-ago": at }, agoText(at));

function agoText(at) {
	const seconds = since(at);
	return seconds < 5 && seconds > -5 ? "now" : seconds < 0 ? `in ${span(-seconds)}` : `${span(seconds)} ago`;
}

setInterval(() => {
	if (document.hidden) return;
	for (const each of document.querySelectorAll("[data-ago]")) {
		const text = agoText(each.dataset.ago);
		if (each.textContent !== text) each.textContent = text;
	}
}, 10_000);

export const chip = (text, kind = "") => h(`span.chip${kind ? `.${kind}` : ""}`, text);

const TONES = {
	good: "active running success leased succeeded", warn: "suspended blocked requires_action rescheduling held interrupted", info: "due",
	bad: "dead error terminated retries_exhausted budget_reached unknown failed",
};
const tone = (name) => Object.keys(TONES).find((each) => TONES[each].split(" ").includes(name)) ?? "";
export const state = (name) => chip(String(name ?? "deleted").replaceAll("_", " "), tone(name));

export const labels = (head) => Object.entries(head.labels).filter(([name]) => !name.startsWith("$")).map(([name, value]) => h("span.label", `${name}=${value}`));
export const quiet = (...text) => h("p.quiet", text);
export const link = (text, onclick) => h("button.link", { onclick }, text);

/** An error for a person: what happened, and the next step. */
export function failure(error, again) {
	return h("div.empty.failure", { role: "alert" }, h("h2", error.title ?? "This did not work"), h("p", error.message),
		again && h("button", { onclick: again }, "Try again"));
}

/** At most one call in this time; the last one is never lost. */
export const throttle = (milliseconds, run) => {
	let [timer, last] = [0, 0];
	return () => {
		timer ||= setTimeout(() => {
			[timer, last] = [0, Date.now()];
			run();
		}, Math.max(0, last + milliseconds - Date.now()));
	};
};

let toasts;
export function toast(text, kind = "good") {
	toasts ??= document.body.appendChild(h("div.toasts", { role: "status", "aria-live": "polite" }));
	const made = h(`div.toast.${kind}`, text);
	toasts.append(made);
	setTimeout(() => made.remove(), kind === "bad" ? 9_000 : 4_000);
}

export const template = (id) => document.getElementById(id).content.cloneNode(true);
export const parts = (root, ...places) => places.map((each) => root.querySelector(each));
export const none = (id) => h("div.empty", template(`none-${id}`));

/** Ask with a form of the shell. `act(given)` runs while it is open, so that an error is shown where
 * one can correct it. What `act` returns; null if the person changed their mind. */
export function ask(id, values = {}, act = () => true) {
	return new Promise((done) => {
		const wrong = h("p.wrong", { role: "alert" });
		const form = h("form", { onsubmit: send }, template(id));
		const dialog = h("dialog", { "aria-labelledby": "ask-title", oncancel: () => close(null) }, form);
		const buttons = form.querySelector(".buttons");
		buttons.before(wrong);
		form.querySelector("h2").id = "ask-title";
		for (const each of form.querySelectorAll("[data-of]")) each[each.name ? "value" : "textContent"] = each.name ? values[each.dataset.of] : visible(values[each.dataset.of]);
		form.querySelector("[value=no]")?.addEventListener("click", () => close(null));
		async function send(event) {
			event.preventDefault();
			buttons.lastChild.disabled = true;
			try {
				close((await act(Object.fromEntries(new FormData(form)))) ?? {});
			} catch (error) {
				wrong.textContent = visible(error.message);
				buttons.lastChild.disabled = false;
			}
		}
		function close(answer) {
			dialog.remove();
			done(answer);
		}
		document.body.append(dialog);
		dialog.showModal();
		form.querySelector("input, textarea, select, .buttons :last-child").focus();
	});
}

/** Tabs: [{ id, label, make }]. Each panel is made when it is first shown. */
export function tabs(label, parts, chosen, changed) {
	const made = new Map();
	const panel = h("div.panel", { role: "tabpanel", tabindex: "-1", id: "panel" });
	const buttons = parts.map((part) =>
		h("button", { role: "tab", id: `tab-${part.id}`, "aria-controls": "panel", onclick: () => show(part.id), onkeydown: move }, part.label));
	function move(event) {
		const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
		if (!step) return;
		const at = (parts.findIndex((part) => part.id === current) + step + parts.length) % parts.length;
		show(parts[at].id);
		buttons[at].focus();
	}
	let current;
	function show(id) {
		const part = parts.find((each) => each.id === id) ?? parts[0];
		if (part.id === current) return;
		current = part.id;
		buttons.forEach((button, at) => {
			const on = parts[at] === part;
			button.setAttribute("aria-selected", on);
			button.tabIndex = on ? 0 : -1;
		});
		panel.setAttribute("aria-labelledby", `tab-${part.id}`);
		if (!made.has(part.id)) made.set(part.id, part.make());
		clear(panel, made.get(part.id));
		changed?.(part.id);
	}
	show(chosen ?? parts[0].id);
	return { root: h("section.tabs", h("div.tablist", { role: "tablist", "aria-label": label }, buttons), panel), show, get current() { return current; } };
}
