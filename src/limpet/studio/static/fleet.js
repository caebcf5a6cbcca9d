// All sessions: how many of each kind, what happens a second, and a list that pages by cursor.

import { h, s, ago, clear, compact, count, failure, labels, none, quiet, state, template, throttle } from "./dom.js";
import { OWN, Remote, get, listen } from "./api.js";

const WINDOW = 60; // seconds of the rates
const FILTERS = ["app", "user", "label", "phase", "status", "text"];

class Rates {
	constructor() {
		this.kinds = ["events", "turns", "errors"];
		this.counts = new Map(this.kinds.map((kind) => [kind, new Array(WINDOW).fill(0)]));
		this.at = Math.floor(Date.now() / 1000);
		this.plots = new Map(this.kinds.map((kind) => [kind, { number: h("b", "0"), line: s("path", { d: "" }) }]));
		this.parts = this.kinds.map((kind) => h(`div.rate.${kind}`, this.plots.get(kind).number, h("span", ` ${kind} a second`),
			s("svg", { viewBox: `0 0 ${WINDOW - 1} 20`, preserveAspectRatio: "none", "aria-hidden": "true" }, this.plots.get(kind).line)));
		this.timer = setInterval(() => document.hidden || this.draw(), 1000);
	}
	add(event) {
		this.shift();
		this.counts.get("events")[WINDOW - 1] += 1;
		if (event.type === "session.status_idle") this.counts.get("turns")[WINDOW - 1] += 1;
		if (event.type === "session.error") this.counts.get("errors")[WINDOW - 1] += 1;
	}
	shift() {
		const now = Math.floor(Date.now() / 1000);
		for (; this.at < now; this.at += 1) for (const each of this.counts.values()) (each.shift(), each.push(0));
	}
	draw() {
		this.shift();
		for (const [kind, numbers] of this.counts) {
			const most = Math.max(1, ...numbers);
			const rate = numbers.slice(-11, -1).reduce((sum, each) => sum + each, 0) / 10;
			const plot = this.plots.get(kind);
			plot.number.textContent = rate < 10 ? rate.toFixed(1) : compact(Math.round(rate));
			plot.line.setAttribute("d", numbers.map((each, x) => `${x ? "L" : "M"}${x} ${(19 - (18 * each) / most).toFixed(1)}`).join(""));
		}
	}
}

export function fleet(app, query) {
	const rates = new Rates();
	const root = h("div.page.fleet", template("fleet"));
	const [phases, body, note, more, form] = [".phases", "tbody", ".note", ".more", "form"].map((each) => root.querySelector(each));
	const tiles = [...root.querySelectorAll(".tile")];
	for (const name of FILTERS) form[name].value = query.get(name) ?? "";
	let next = null;
	let asked = 0;
	const rows = new Map();

	const filters = () => Object.fromEntries(FILTERS.map((name) => [name, form[name].value.trim()]).filter(([, value]) => value));
	function parameters() {
		const { label, status, text, ...rest } = filters();
		const made = { ...rest, q: text, [["blocked", "due", "dead"].includes(status) ? "ready" : "status"]: status };
		for (const [, name, value] of (label ?? "").matchAll(/([^=,]+)=([^,]*)/g)) made[`labels[${name.trim()}]`] = value.trim();
		return made;
	}

	async function load(page, live) {
		const number = (asked += 1);
		try {
			const found = await get(`${OWN}/sessions`, { ...parameters(), limit: 50, page });
			if (number !== asked) return;
			if (!page && !live) (clear(body), rows.clear());
			for (const each of live ? found.data.toReversed() : found.data) put(each, live);
			if (!live) next = found.next_page;
			more.hidden = !next;
			more.textContent = found.data.length ? "Show more" : "Look further back";
			clear(note, !rows.size && (next ? quiet("None of the newest sessions match.") : Object.keys(filters()).length ? none("matches") : none("exist")));
		} catch (error) {
			if (number === asked) clear(note, failure(error, () => load()));
		}
	}

	function put(head, first) {
		const remote = Remote.of(head.session);
		const row = h("tr", h("td", h("a", { href: remote.href }, h("span.quiet", `${remote.app}/${remote.user}/`), remote.id)), h("td", state(head.phase)),
			h("td", state(["blocked", "due", "dead", "held"].includes(head.ready) ? head.ready : head.status)), h("td.number", count(head.version)), h("td", ago(head.updated_at)), h("td.labels", labels(head)));
		const old = rows.get(remote.name);
		if (old) old.replaceWith(row);
		else if (first) body.prepend(row);
		else body.append(row);
		rows.set(remote.name, row);
	}

	async function tally() {
		try {
			const found = await get(`${OWN}/status`, { app: filters().app });
			for (const tile of tiles) tile.firstChild.textContent = compact(found[tile.classList[1]]) + (found.complete || !tile.matches(".sessions") ? "" : "+");
			clear(phases, Object.keys(found.by_phase).filter((name) => found.by_phase[name]).map((name) => h("button", { onclick: () => pick("phase", name) }, state(name), ` ${compact(found.by_phase[name])}`)));
		} catch {
			clear(phases, quiet("Your key does not see the counts of this store."));
		}
	}

	function pick(name, value) {
		form[name].value = form[name].value === value ? "" : value;
		changed();
	}
	const changed = () => {
		const given = new URLSearchParams(filters()).toString();
		history.replaceState(null, "", `#/fleet${given ? `?${given}` : ""}`);
		load();
		tally();
	};
	form.addEventListener("input", throttle(300, changed));
	form.addEventListener("submit", (event) => (event.preventDefault(), changed()));
	more.addEventListener("click", () => load(next));
	for (const tile of tiles) tile.addEventListener("click", () => pick("status", tile.value));
	root.querySelector(".rates").append(...rates.parts);
	load();
	tally();
	const refresh = throttle(1_000, () => load(null, true));
	const recount = throttle(5_000, tally);
	listen(`${OWN}/events/stream`, {}, (event) => (rates.add(event), refresh(), recount()), app.connection);
	return { title: "Fleet", root, close: () => clearInterval(rates.timer) };
}
