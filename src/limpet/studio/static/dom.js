// Elements, and texts for people. Text of sessions becomes text nodes here, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element: h("a.button", { href, onclick }, "text", child, [children]). */
export const h = (...given) => make((tag) => document.createElement(tag), ...given);
export const s = (...given) => make((tag) => document.createElementNS(SVG, tag), ...given);

function make(create, name, props, ...children) {
	const [tag, ...classes] = name.split(".");
	const element = create(tag || "div");
	if (props?.constructor !== Object) [props, children] = [{}, [props, ...children]];
	if (classes.length) element.setAttribute("class", classes.join(" "));
	for (const [name, value] of Object.entries(props)) {
		if (value == null || value === false) continue;
		if (typeof value === "function") element.addEventListener(name.slice(2), value);
		else element.setAttribute(name, value === true ? "" : value);
	}
	element.append(...shown(children));
	return element;
}

const shown = (children) => children.flat(4).filter(Boolean).map((it) => (it instanceof Node ? it : visible(it)));

export const part = (id) => document.getElementById(id);
export const one = (root, selector) => root.querySelector(selector);
export const all = (root, selector) => [...root.querySelectorAll(selector)];
export const on = (element, name, run) => element.addEventListener(name, run);

export function clear(element, ...children) {
	element.replaceChildren(...shown(children));
	return element;
}

/** Fill a place with what is read, or with its error. */
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
export const visible = (text) => String(text).replace(HIDDEN, (it) => `⟦U+${it.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟧`);

export const count = (number) => Number(number ?? 0).toLocaleString("en-US");

const SHORT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
export const compact = (number) => (number < 10_000 ? count(number) : SHORT.format(number));
export const money = (cost) => (cost < 0 ? `−${money(-cost)}` : cost ? `$${cost.toFixed(cost < 0.1 ? 4 : 2)}` : "$0");
export const bytes = (size) => (size < 1e6 ? `${(size / 1e3).toFixed(0)} KB` : `${(size / 1e6).toFixed(1)} MB`);

export function span(size) {
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

export const ago = (at) => h("time", { datetime: at, title: at }, agoText(at));

function agoText(at) {
	const seconds = since(at);
	return seconds < 5 && seconds > -5 ? "now" : seconds < 0 ? `in ${span(-seconds)}` : `${span(seconds)} ago`;
}

setInterval(() => {
	if (document.hidden) return;
	for (const it of all(document, "time")) {
		const text = agoText(it.dateTime);
		if (it.textContent !== text) it.textContent = text;
	}
}, 10_000);

export const chip = (text, kind = "") => h(`span.chip${kind ? `.${kind}` : ""}`, text);

export const state = (name) => chip(String(name ?? "deleted").replaceAll("_", " "), `is-${String(name).replace(/\W/g, "")}`);

export const labels = (head) => Object.entries(head.labels).map(([name, value]) => name[0] !== "$" && h("span.label", `${name}=${value}`));
export const quiet = (...text) => h("p.quiet", text);
export const anchor = ({ href, name }) => h("a", { href }, name);
export const link = (text, onclick) => h("button.link", { onclick }, text);

export function failure(error, again) {
	return h("div.empty.failure", { role: "alert" }, h("h2", error.title ?? "This did not work"), h("p", error.message),
		again && h("button", { onclick: again }, "Try again"));
}

/** One call in this time, and in so many times what one takes; the last is never lost. */
export const throttle = (milliseconds, run, times = 0) => {
	let [timer, next] = [0, 0];
	return () => {
		timer ||= setTimeout(async () => {
			const began = Date.now();
			[timer, next] = [0, began + milliseconds];
			await run();
			next = Math.max(next, began + times * (Date.now() - began));
		}, Math.max(0, next - Date.now()));
	};
};

/** An error where something is shown already, or else in its place. */
export const wrong = (error, shown, place, again) => (shown ? complain(error) : clear(place, failure(error, again)));
export const complain = (error) => toast(error.message, "bad");

/** Mark one element of a place alone. */
export function select(root, element) {
	for (const it of all(root, ".selected")) it.classList.remove("selected");
	element?.classList.add("selected");
}

/** Draw a place again, with the focus on the same button. */
export async function refocused(root, draw) {
	const buttons = () => all(root, "button");
	const at = buttons().indexOf(document.activeElement);
	await draw();
	if (document.activeElement === document.body) buttons()[at]?.focus({ preventScroll: true });
}

export const near = (element) => element?.scrollIntoView({ block: "nearest" });
export const filled = (list) => one(list, ".empty")?.remove();

export function toast(text, kind = "good") {
	const made = h(`div.toast.${kind}`, text);
	part("toasts").append(made);
	setTimeout(() => made.remove(), kind === "bad" ? 9_000 : 4_000);
}

/** Sentences of the shell, by name. */
export const SAY = part("words").content.firstChild.dataset;
export const template = (id) => part(id).content.cloneNode(true);
export const parts = (root, ...places) => places.map((it) => one(root, it));
export const none = (id) => h("div.empty", template(`none-${id}`));

/** Ask with a form of the shell, open until `act(given)` is done: what that returns, or null. */
export function ask(id, values = {}, act = () => true) {
	return new Promise((done) => {
		const wrong = h("p.wrong", { role: "alert" });
		const form = h("form", { onsubmit: send }, template(id));
		const dialog = h("dialog", { "aria-labelledby": "ask-title", oncancel: () => close(null) }, form);
		const buttons = one(form, ".buttons");
		buttons.before(wrong);
		one(form, "h2").id = "ask-title";
		for (const it of all(form, "[data-of]")) it.name ? (it.value = values[it.dataset.of]) : clear(it, values[it.dataset.of]);
		one(form, "[value=no]")?.addEventListener("click", () => close(null));
		async function send(event) {
			event.preventDefault();
			buttons.lastChild.disabled = true;
			try {
				close((await act(Object.fromEntries(new FormData(form)))) ?? {});
			} catch (error) {
				clear(wrong, error.message);
				buttons.lastChild.disabled = false;
			}
		}
		function close(answer) {
			dialog.close(); // the focus goes back
			dialog.remove();
			done(answer);
		}
		document.body.append(dialog);
		dialog.showModal();
		one(form, "input, textarea, select, .buttons :last-child").focus();
	});
}

/** Tabs of the shell. A panel is made when it is first shown, and renewed when it is shown again. */
export function tabs(root, makers, chosen) {
	const [list, panel] = root.children;
	const buttons = [...list.children];
	const made = {};
	let current;
	function show(id) {
		const button = buttons.find((it) => it.value === id) ?? buttons[0];
		if (button.value === current) return;
		current = button.value;
		for (const it of buttons) {
			it.setAttribute("aria-selected", it === button);
			it.tabIndex = it === button ? 0 : -1;
		}
		panel.setAttribute("aria-labelledby", button.id);
		clear(panel, (made[current] ??= makers[current]()));
		made[current].renew?.();
	}
	on(list, "click", ({ target }) => target.value && (show(target.value), near(root)));
	on(list, "keydown", ({ key, target }) => {
		const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
		const next = step && buttons.at((buttons.indexOf(target) + step) % buttons.length);
		if (next) (show(next.value), next.focus());
	});
	show(chosen);
	return { get shown() { return made[current]; } };
}
