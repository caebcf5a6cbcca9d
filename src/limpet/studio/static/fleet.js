// All sessions: how many of each kind, what happens a second, and a list that pages by cursor.

import { h, s, ago, chip, clear, compact, count, failure, labels, none, parts, quiet, state, template, throttle } from "./dom.js";
import { OWN, Remote, get, listen } from "./api.js";

const READY = ["blocked", "due", "dead", "held"];
const WINDOW = 60; // seconds of the rates
const TRIES = 5; // requests that one search makes before it asks whether to go on
const COUNTED = { "session.status_idle": "turns", "session.error": "errors" };
const FILTERS = ["app", "user", "label", "phase", "status", "text"];

/** What happens a second, with the last minute as a line. */
function rates() {
	const second = () => Math.floor(Date.now() / 1000);
	const kinds = ["events", "turns", "errors"].map((kind) => ({ kind, counts: new Array(WINDOW).fill(0), number: h("b", "0.0"), line: s("path") }));
	let at = second();
	function shift() {
		for (; at < second(); at += 1) for (const { counts } of kinds) (counts.shift(), counts.push(0));
	}
	const timer = setInterval(() => {
		if (document.hidden) return;
		shift();
		for (const { counts, number, line } of kinds) {
			const most = Math.max(1, ...counts);
			const rate = counts.slice(-11, -1).reduce((sum, each) => sum + each, 0) / 10;
			number.textContent = rate < 10 ? rate.toFixed(1) : compact(Math.round(rate));
			line.setAttribute("d", `M${counts.map((each, x) => `${x} ${(19 - (18 * each) / most).toFixed(1)}`).join("L")}`);
		}
	}, 1000);
	return {
		add({ type }) {
			shift();
			for (const { kind, counts } of kinds) if (kind === "events" || kind === COUNTED[type]) counts[WINDOW - 1] += 1;
		},
		parts: kinds.map(({ kind, number, line }) => h(`div.rate.${kind}`, number, ` ${kind} a second`, s("svg", { viewBox: `0 0 ${WINDOW - 1} 20`, preserveAspectRatio: "none", "aria-hidden": "true" }, line))),
		close: () => clearInterval(timer),
	};
}

export function fleet(app, query) {
	const flow = rates();
	const root = h("div.page.fleet", template("fleet"));
	const [phases, body, note, more, form] = parts(root, ".phases", "tbody", ".note", ".more", "form");
	const tiles = [...root.querySelectorAll(".tile")];
	for (const name of FILTERS) form[name].value = query.get(name) ?? "";
	let next = null;
	let asked = 0;
	const rows = new Map();

	const filters = () => Object.fromEntries(FILTERS.map((name) => [name, form[name].value.trim()]).filter(([, value]) => value));
	function parameters() {
		const { label, status, text, ...rest } = filters();
		const made = { ...rest, q: text, [READY.includes(status) ? "ready" : "status"]: status };
		for (const [, name, value] of (label ?? "").matchAll(/([^=,]+)=([^,]*)/g)) made[`labels[${name.trim()}]`] = value.trim();
		return made;
	}

	// Where no index serves a filter, a request looks at some thousand sessions.
	async function load(page, live, tries = TRIES) {
		const number = (asked += 1);
		try {
			const found = await get(`${OWN}/sessions`, { ...parameters(), limit: 50, page });
			if (number !== asked) return;
			if (!page && !live) (clear(body), rows.clear());
			if (live) for (const each of rows.values()) each.classList.toggle("gone", !found.next_page);
			for (const each of live ? found.data.toReversed() : found.data) put(each, live);
			if (!live) next = found.next_page;
			const searching = next && !found.data.length && !live;
			if (searching && tries > 1) return await load(next, false, tries - 1);
			more.hidden = !next;
			more.textContent = searching ? "Look further back" : "Show more";
			clear(note, next ? searching && quiet("No more matches so far. Older sessions were not looked at.") : !rows.size && none(Object.keys(filters()).length ? "matches" : "exist"));
		} catch (error) {
			if (number === asked) clear(note, failure(error, () => load()));
		}
	}

	function put(head, first) {
		const remote = Remote.of(head.session);
		const row = h("tr", h("td", h("a", { href: remote.href }, h("span.quiet", `${remote.app}/${remote.user}/`), remote.id)), h("td", state(head.phase)),
			h("td", head.status === "terminated" ? chip("ended") : state(READY.includes(head.ready) ? head.ready : head.status)), h("td.number", count(head.version)), h("td", ago(head.updated_at)), h("td.labels", labels(head)));
		const old = rows.get(remote.name);
		if (old) old.replaceWith(row);
		else if (first) body.prepend(row);
		else body.append(row);
		rows.set(remote.name, row);
	}

	async function tally() {
		try {
			const found = await get(`${OWN}/status`, { app: filters().app });
			for (const tile of tiles) {
				const number = found[tile.classList[1]];
				tile.firstChild.textContent = compact(number) + (found.complete || !tile.matches(".sessions") ? "" : "+");
				tile.classList.toggle("zero", !number);
			}
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
	root.querySelector(".rates").append(...flow.parts);
	load();
	tally();
	const refresh = throttle(1_000, () => load(null, true));
	const recount = throttle(5_000, tally);
	listen(`${OWN}/events/stream`, {}, (event) => (flow.add(event), refresh(), recount()), app.connection);
	return { title: "Fleet", root, close: flow.close };
}
