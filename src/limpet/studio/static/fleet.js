// All sessions: how many of each kind, what happens a second, and a list that pages by cursor.

import { h, all, one, on, ago, clear, compact, count, failure, filled, labels, none, parts, quiet, state, template, throttle } from "./dom.js";
import { OWN, Remote, get, listen, session } from "./api.js";

const READY = ["blocked", "due", "dead", "held"];
const WINDOW = 60; // seconds of the rates
const PAGE = 50;
const ROWS_MAX = 1_000; // then it begins again, unless scrolled down
const TRIES = 20; // requests of a search before it asks
const COUNTED = { "session.status_idle": "turns", "session.error": "errors" };

/** What happens a second, with the last minute as a line. */
function rates(root) {
	const second = () => Math.floor(Date.now() / 1000);
	const kinds = all(root, ".rate").map((it) => ({ kind: it.classList[1], counts: new Array(WINDOW).fill(0), number: it.firstChild, line: one(it, "path") }));
	let at = second();
	function shift() {
		for (; at < second(); at += 1) for (const { counts } of kinds) (counts.shift(), counts.push(0));
	}
	const timer = setInterval(() => {
		if (document.hidden) return;
		shift();
		for (const { counts, number, line } of kinds) {
			const most = Math.max(1, ...counts);
			const rate = counts.slice(-11, -1).reduce((sum, it) => sum + it, 0) / 10;
			number.textContent = rate < 10 ? rate.toFixed(1) : compact(Math.round(rate));
			line.setAttribute("d", `M${counts.map((it, x) => `${x} ${(19 - (18 * it) / most).toFixed(1)}`).join("L")}`);
		}
	}, 1000);
	return {
		add({ type }) {
			shift();
			for (const { kind, counts } of kinds) if (kind === "events" || kind === COUNTED[type]) counts[WINDOW - 1] += 1;
		},
		close: () => clearInterval(timer),
	};
}

export function fleet(app, query) {
	const root = h("div.page.fleet", template("fleet"));
	const flow = rates(root);
	const [phases, body, note, more, form] = parts(root, ".phases", "tbody", ".note", ".more", "form");
	const tiles = all(root, ".tile");
	for (const it of form) it.value = query.get(it.name) ?? "";
	let [asked, next] = [0];
	const rows = new Map();

	const read = (page) => get(`${OWN}/sessions`, { ...parameters(), limit: PAGE, page });
	const filters = () => Object.fromEntries([...form].map((it) => [it.name, it.value.trim()]).filter(([, value]) => value));
	function parameters() {
		const { label, status, text, ...rest } = filters();
		const made = { ...rest, q: text, [READY.includes(status) ? "ready" : "status"]: status };
		for (const it of label?.split(",") ?? []) {
			const [name, ...value] = it.split("=");
			if (value.length) made[`labels[${name.trim()}]`] = value.join("=").trim();
			else made.q ||= it.trim(); // half a label: a text in it
		}
		return made;
	}

	// Without an index for its filters, a request looks at some sessions.
	async function load(from, tries = TRIES) {
		const number = (asked += 1);
		body.ariaBusy = true;
		try {
			const found = await read(from);
			if (number !== asked) return;
			if (!from) (clear(body), rows.clear());
			for (const it of found.data) put(it);
			next = found.next_page;
			const stopped = next && found.data.length < PAGE / 2;
			if (stopped && tries > 1) return (clear(note, quiet("Searching further back…")), await load(next, tries - 1));
			more.hidden = !next;
			more.textContent = stopped ? "Search further back" : "Show more";
			clear(note, stopped ? [h("b", rows.size ? count(rows.size) : "Nothing"), template("stopped")] : !rows.size && none(Object.keys(filters()).length ? "matches" : "exist"));
		} catch (error) {
			if (number === asked) clear(note, failure(error, () => load(from)));
		}
		body.ariaBusy = number !== asked;
	}

	/** The newest again: what no longer matches is dimmed. */
	async function renew() {
		const number = asked;
		if (body.ariaBusy === "true") return;
		if (rows.size > ROWS_MAX && !root.parentNode.scrollTop) return load();
		const found = await read().catch(() => null);
		if (!found || number !== asked || (found.next_page && !found.data.length)) return;
		const shown = found.data.toReversed().map((it) => put(it, true));
		if (rows.size) filled(note);
		for (const row of body.children) {
			row.classList.toggle("gone", !shown.includes(row));
			if (found.next_page && row === shown[0]) break;
		}
	}

	function put(head, first) {
		const remote = new Remote(head.session);
		const old = rows.get(remote.name);
		const text = JSON.stringify(head);
		if (old?.text === text) return old;
		const link = h("a", { href: session.may("read") && remote.href }, h("span.quiet", `${remote.app}/${remote.user}/`), remote.id);
		const row = h("tr", h("td", link), h("td", state(head.phase)), h("td", state(head.status === "terminated" ? "ended" : READY.includes(head.ready) ? head.ready : head.status)),
			h("td.number", count(head.version)), h("td", ago(head.updated_at)), h("td.labels", labels(head)));
		row.text = text;
		const focused = old?.contains(document.activeElement);
		if (old) old.replaceWith(row);
		else if (first) body.prepend(row);
		else body.append(row);
		if (focused) link.focus();
		rows.set(remote.name, row);
		return row;
	}

	async function tally() {
		try {
			const found = await get(`${OWN}/status`, { app: filters().app });
			for (const tile of tiles) {
				const number = found[tile.classList[1]];
				tile.firstChild.textContent = compact(number) + (found.complete || !tile.matches(".sessions") ? "" : "+");
				tile.classList.toggle("zero", !number);
			}
			clear(phases, Object.entries(found.by_phase).map(([name, number]) => number > 0 && h("button", { onclick: () => pick("phase", name) }, state(name), ` ${compact(number)}`)));
		} catch (error) {
			clear(phases, quiet(error.message));
		}
	}

	function pick(name, value) {
		form[name].value = form[name].value === value ? "" : value;
		changed();
	}
	const changed = () => {
		history.replaceState(null, "", `#/fleet?${new URLSearchParams(filters())}`);
		load();
		tally();
	};
	on(form, "input", throttle(300, changed));
	on(more, "click", () => load(next));
	for (const tile of tiles) on(tile, "click", () => pick("status", tile.value));
	load();
	tally();
	const refresh = throttle(1_000, renew, 10);
	const recount = throttle(5_000, tally, 30); // it counts all
	listen("events/stream", {}, (event) => (flow.add(event), refresh(), recount()), app.connection);
	return { title: "Fleet", root, close: flow.close };
}
