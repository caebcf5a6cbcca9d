// The log as a window: some hundred rows around one seq. A row is made once: nothing closes
// or moves when events arrive.

import { h, one, on, clear, complain, count, filled, into, near, none, parts, select, template, visible, SAY } from "./dom.js";
import { CONVERSATION, conversationRow, joined, logRow, partialRow, speaks, textOf } from "./events.js";

const PAGE = 60;
const ROWS_MAX = 400;
const NEAR = 900; // pixels from an edge: the next page is read
const SEARCH_PAGES_MAX = 400;
const RECENT_MAX = 1_000; // live events kept while a page is read

export function sessionLog(remote, version, picked) {
	let [all, ended, unseen, opened, recent, began, loading, selected] = [false, true, 0, 0, []];
	let rows = new Map(); // by seq, in order
	const partials = new Map();
	const root = h("section.log", template("log"));
	const [list, scroll, pill, box, found, modes] = parts(root, ".rows", ".scroll", ".pill", "input", ".found", ".segmented");
	const types = () => (all ? undefined : CONVERSATION);
	on(scroll, "scroll", scrolled);
	on(box, "keydown", (event) => event.key === "Enter" && search(event.shiftKey ? -1 : 1));
	on(root, "click", ({ target }) => {
		const button = target.closest("button");
		if (!button) return;
		if (button.dataset.seq) pick(Number(button.dataset.seq));
		else if (button === pill) open();
		else if (button.parentNode === modes) show(Boolean(button.value));
		else if (button.matches(".search .icon")) search(Number(button.value));
	});

	function show(wanted) {
		if (wanted === all) return;
		all = wanted;
		for (const it of modes.children) it.setAttribute("aria-pressed", Boolean(it.value) === wanted);
		open(selected);
	}

	/** Show the end of the log, or the events around a seq. */
	function open(seq) {
		const number = (opened += 1);
		return into(list, async () => {
			const [older, newer] = await Promise.all([page({ before: seq && seq + 1, order: "desc" }), seq ? page({ after: seq }) : { data: [] }]);
			if (number !== opened) return; // another moment was chosen
			fill([...older.data.reverse(), ...newer.data], !older.next_page, !newer.next_page);
			selected = seq;
			place();
		});
	}

	const place = () => (selected ? mark(selected) : toEnd());

	const page = (query) => remote.get("/events", { types: types(), limit: PAGE, brief: true, ...query });

	function fill(events, first, last) {
		rows.clear();
		clear(list);
		[began, ended] = [first, last];
		add(events, false);
		catchUp();
		if (!list.firstChild) clear(list, none("said"));
		seen();
	}

	/** Add what was recorded while a page was read. */
	function catchUp() {
		const last = [...rows.keys()].at(-1) ?? 0;
		if (ended) add(recent.filter((it) => it.seq > last), false);
	}

	function add(events, before) {
		const made = document.createDocumentFragment();
		const find = (kind, id) => id && [made, list].map((it) => one(it, `[data-${kind}="${CSS.escape(id)}"]`)).find(Boolean);
		const fresh = [];
		for (const event of events) {
			version = Math.max(version, event.seq);
			if (rows.has(event.seq)) continue;
			event.whole = async () => (await remote.get("/events", { after: event.seq - 1, limit: 1 })).data[0];
			const card = all ? null : joined(event, find);
			const row = card ?? (all ? logRow(event) : speaks(event) ? conversationRow(event) : null);
			fresh.push([event.seq, row]);
			if (card || !row) continue;
			row.dataset.row = event.seq;
			made.append(row);
		}
		if (before) {
			rows = new Map([...fresh, ...rows]);
			list.prepend(made);
		} else {
			for (const [seq, row] of fresh) rows.set(seq, row);
			filled(list);
			list.append(made);
		}
		if (ended) list.append(...partials.values());
	}

	async function scrolled() {
		if (below() < 4) seen();
		if (loading) return;
		const up = scroll.scrollTop < NEAR && !began;
		const down = below() < NEAR && !ended;
		if (!up && !down) return;
		const seqs = [...rows.keys()];
		const number = opened;
		loading = page(up ? { before: seqs[0], order: "desc" } : { after: seqs.at(-1) });
		try {
			const page = await loading;
			if (number !== opened) return;
			if (up) {
				began = !page.next_page;
				const [height, top] = [scroll.scrollHeight, scroll.scrollTop];
				add(page.data.reverse(), true);
				scroll.scrollTop = top + scroll.scrollHeight - height;
				drop(true);
			} else {
				ended = !page.next_page;
				add(page.data, false);
				catchUp();
				drop(false);
			}
		} catch (error) {
			complain(error);
		} finally {
			loading = null;
		}
		requestAnimationFrame(scrolled);
	}

	/** Drop rows at the far end, to bound memory. */
	function drop(fromEnd) {
		const [height, top] = [scroll.scrollHeight, scroll.scrollTop];
		const many = Math.max(0, rows.size - ROWS_MAX);
		for (const [seq, row] of fromEnd ? [...rows].slice(ROWS_MAX) : [...rows].slice(0, many)) {
			if (row?.dataset.row === String(seq)) row.remove();
			rows.delete(seq);
			if (fromEnd) ended = false;
			else began = false;
		}
		if (!fromEnd) scroll.scrollTop = top - (height - scroll.scrollHeight);
	}

	// --- live

	const below = () => scroll.scrollHeight - scroll.clientHeight - scroll.scrollTop;
	const atEnd = () => ended && below() < 80;

	function live(event) {
		if (event.partial) return piece(event);
		if (event.seq <= version) return;
		version = event.seq;
		recent = [...recent.slice(1 - RECENT_MAX), event];
		const follow = atEnd();
		// When a turn ends, nothing more is written.
		for (const [id, row] of partials) if (id === event.id || event.type.startsWith("session.status")) (row.remove(), partials.delete(id));
		if (ended) add([event], false);
		if (follow) {
			drop(false);
			toEnd();
		} else if (all || speaks(event)) {
			unseen += 1;
			pill.hidden = false;
			pill.textContent = `${count(unseen)} new ↓`;
		}
	}

	function piece(event) {
		const follow = atEnd();
		let row = partials.get(event.id);
		if (!row) partials.set(event.id, (row = partialRow()));
		if (ended && !row.isConnected) (filled(list), list.append(row));
		const said = one(row, ".text");
		if (row.attempt !== event.attempt) said.textContent = "";
		row.attempt = event.attempt;
		said.textContent += visible(textOf(event.data) ?? "");
		if (follow) toEnd();
	}

	function toEnd() {
		scroll.scrollTop = scroll.scrollHeight;
		seen();
	}

	function seen() {
		unseen = 0;
		pill.hidden = ended;
		pill.textContent = "To the newest ↓";
	}

	/** The row that shows a seq, or the nearest before it. */
	function rowOf(seq) {
		const shown = [...rows].filter(([, row]) => row?.isConnected);
		return (shown.findLast(([it]) => it <= seq) ?? shown[0])?.[1];
	}

	async function go(seq) {
		const seqs = [...rows.keys()];
		if (!seqs.length || seq < seqs[0] || (seq > seqs.at(-1) && !ended)) await open(seq);
		else mark(seq);
	}

	function mark(seq) {
		selected = seq;
		select(list, rowOf(seq));
		near(one(list, ".selected"));
	}

	function pick(seq) {
		mark(seq);
		picked(seq);
	}

	function step(by) {
		const shown = [...list.querySelectorAll("[data-row]")];
		const at = shown.findIndex((it) => it.classList.contains("selected"));
		const row = at < 0 ? shown.at(by < 0 ? -1 : 0) : shown[at + by];
		if (row) pick(Number(row.dataset.row));
	}

	async function search(by) {
		const q = box.value.trim();
		if (!q) return box.focus();
		const where = by > 0 ? { order: "asc", after: selected ?? 0 } : { order: "desc", before: selected ?? version + 1 };
		found.textContent = "searching…";
		try {
			for (let page, n = 0; n < SEARCH_PAGES_MAX; n += 1) {
				const { data: [event], next_page: next } = await remote.get("/search", { q, types: types(), limit: 1, ...where, page });
				if (event) {
					found.textContent = `#${event.seq}`;
					await go(event.seq);
					return picked(event.seq);
				}
				if (!next) break;
				page = next;
			}
			found.textContent = by > 0 ? SAY.later : SAY.earlier;
		} catch (error) {
			clear(found, error.message);
		}
	}

	const log = { root, box, open, place, live, go, step, get version() { return version; } };
	return log;
}
