// All sessions: how many of each kind, what happens a second, and a list that pages by cursor.

import { h, s, PHASES, ago, clear, compact, count, failure, none, quiet, state, throttle } from "./dom.js";
import { OWN, Remote, get, listen } from "./api.js";

const WINDOW = 60; // seconds of the rates
const FILTERS = ["app", "user", "label", "phase", "status", "text"];
const TILES = [["leased", "Running"], ["due", "Due"], ["blocked", "Blocked"], ["held", "Retrying"], ["dead", "Dead"], ["sessions", "Sessions"]];

class Rates {
	constructor() {
		this.kinds = ["events", "turns", "errors"];
		this.counts = new Map(this.kinds.map((kind) => [kind, new Array(WINDOW).fill(0)]));
		this.at = Math.floor(Date.now() / 1000);
		this.plots = new Map(this.kinds.map((kind) => [kind, { number: h("b", "0"), line: s("path", { d: "" }) }]));
		this.root = h("div.rates", this.kinds.map((kind) => h(`div.rate.${kind}`, this.plots.get(kind).number, h("span", ` ${kind} a second`),
			s("svg", { viewBox: `0 0 ${WINDOW - 1} 20`, preserveAspectRatio: "none", "aria-hidden": "true" }, this.plots.get(kind).line))));
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
	const tiles = new Map(TILES.map(([name, label]) => [name, h("b", "–")]));
	const phases = h("div.phases");
	const body = h("tbody");
	const table = h("table.sessions", h("thead", h("tr", ["Session", "Phase", "Status", "Events", "Updated", "Labels"].map((each) => h("th", { scope: "col" }, each)))), body);
	const note = h("div");
	const more = h("button", { hidden: true, onclick: () => load(next) }, "Show more");
	const inputs = Object.fromEntries(FILTERS.map((name) => [name, name === "phase" ? choice(name, PHASES) : name === "status" ? choice(name, ["running", "idle", "rescheduling", "terminated", "blocked", "due", "dead"])
		: h("input", { name, value: query.get(name) ?? "", placeholder: { label: "plan=gold", text: "id, user or label" }[name] ?? "", autocomplete: "off" })]));
	function choice(name, values) {
		return h("select", { name }, h("option", { value: "" }, "any"), values.map((each) => h("option", { value: each, selected: each === query.get(name) }, each)));
	}
	let next = null;
	let asked = 0;
	const rows = new Map();

	const filters = () => Object.fromEntries(FILTERS.map((name) => [name, inputs[name].value.trim()]).filter(([, value]) => value));
	function parameters() {
		const { label, status, text, ...rest } = filters();
		const made = { ...rest, q: text, [["blocked", "due", "dead"].includes(status) ? "ready" : "status"]: status };
		for (const each of (label ?? "").split(",").filter((pair) => pair.includes("="))) {
			const at = each.indexOf("=");
			made[`labels[${each.slice(0, at).trim()}]`] = each.slice(at + 1).trim();
		}
		return made;
	}

	async function load(page, quiet) {
		const number = (asked += 1);
		try {
			const found = await get(`${OWN}/sessions`, { ...parameters(), limit: 50, page });
			if (number !== asked) return;
			if (!page && !quiet) (clear(body), rows.clear());
			for (const each of quiet ? found.data.toReversed() : found.data) put(each, quiet);
			if (!quiet) next = found.next_page;
			more.hidden = !next;
			more.textContent = found.data.length ? "Show more" : "Look further back";
			clear(note, !rows.size && (next ? quiet("None of the newest sessions match.") : Object.keys(filters()).length ? none("matches") : none("exist")));
		} catch (error) {
			if (number === asked) clear(note, failure(error, () => load()));
		}
	}

	function put(head, first) {
		const remote = Remote.of(head.session);
		const labels = Object.entries(head.labels).filter(([name]) => !name.startsWith("$")).map(([name, value]) => h("span.label", (`${name}=${value}`)));
		const row = h("tr", h("td", h("a", { href: remote.href }, h("span.quiet", `${remote.app}/${remote.user}/`), remote.id)), h("td", state(head.phase)),
			h("td", state(["leased", "idle", "ended"].includes(head.ready) || !head.ready ? head.status : head.ready)), h("td.number", count(head.version)), h("td", ago(head.updated_at)), h("td.labels", labels));
		const old = rows.get(remote.name);
		if (old) old.replaceWith(row);
		else if (first) body.prepend(row);
		else body.append(row);
		rows.set(remote.name, row);
	}

	async function tally() {
		try {
			const found = await get(`${OWN}/status`, { app: filters().app });
			for (const [name, number] of tiles) number.textContent = compact(found[name]) + (found.complete || name !== "sessions" ? "" : "+");
			clear(phases, PHASES.filter((name) => found.by_phase[name]).map((name) => h("button", { onclick: () => pick("phase", name) }, state(name), ` ${compact(found.by_phase[name])}`)));
		} catch {
			clear(phases, quiet("Your key does not see the counts of this store."));
		}
	}

	function pick(name, value) {
		inputs[name].value = inputs[name].value === value ? "" : value;
		changed();
	}
	const changed = () => {
		const given = new URLSearchParams(filters()).toString();
		history.replaceState(null, "", `#/fleet${given ? `?${given}` : ""}`);
		load();
		tally();
	};
	const form = h("form.filters", { role: "search", oninput: throttle(300, changed), onsubmit: (event) => (event.preventDefault(), changed()) },
		FILTERS.map((name) => h("label", h("span", name), inputs[name])));
	load();
	tally();
	const refresh = throttle(1_000, () => load(null, true));
	const recount = throttle(5_000, tally);
	listen(`${OWN}/events/stream`, {}, (event) => (rates.add(event), refresh(), recount()), app.connection);
	const status = { blocked: "blocked", due: "due", dead: "dead", leased: "running" };
	return {
		title: "Fleet",
		root: h("div.page.fleet", h("h1", "Fleet"), h("div.tiles", TILES.map(([name, label]) =>
			h(`button.tile.${name}`, { disabled: !status[name], onclick: () => pick("status", status[name]) }, tiles.get(name), h("span", label)))), phases, rates.root, form, h("div.wide", table), note, more),
		close: () => clearInterval(rates.timer),
	};
}
