// The log as a window: some hundred rows around one seq. A row is made once, so that nothing closes or
// moves when events arrive.

import { h, clear, count, into, none, template, toast, visible } from "./dom.js";
import { CONVERSATION, conversationRow, joined, logRow, partialRow, speaks, textOf } from "./events.js";

const PAGE = 60;
const ROWS_MAX = 400;
const NEAR = 900; // pixels from an edge at which the next page is read
const SEARCH_PAGES_MAX = 400;

export class Log {
	constructor(remote, { picked }) {
		Object.assign(this, { remote, picked, all: false, version: 0, ended: true, began: false, unseen: 0, loading: null });
		this.rows = new Map(); // by seq, in order
		this.partials = new Map();
		this.root = h("section.log", template("log"));
		for (const [name, place] of [["list", ".rows"], ["scroll", ".scroll"], ["pill", ".pill"], ["box", "input"], ["found", ".found"], ["modes", ".segmented"]]) this[name] = this.root.querySelector(place);
		this.scroll.addEventListener("scroll", () => this.scrolled());
		this.box.addEventListener("keydown", (event) => event.key === "Enter" && this.search(event.shiftKey ? -1 : 1));
		this.root.addEventListener("click", ({ target }) => {
			const button = target.closest("button");
			if (!button) return;
			if (button.dataset.seq) this.pick(Number(button.dataset.seq));
			else if (button === this.pill) this.open();
			else if (button.parentNode === this.modes) this.show(Boolean(button.value));
			else if (button.matches(".search .icon")) this.search(Number(button.value));
		});
	}

	get types() {
		return this.all ? undefined : CONVERSATION;
	}

	show(all) {
		if (all === this.all) return;
		this.all = all;
		for (const each of this.modes.children) each.setAttribute("aria-pressed", String(Boolean(each.value) === all));
		this.open(this.selected);
	}

	/** Show the end of the log, or the events around a seq. */
	open(seq) {
		this.partials.clear();
		return into(this.list, async () => {
			const [older, newer] = await Promise.all([this.page({ before: seq && seq + 1, order: "desc" }), seq ? this.page({ after: seq }) : { data: [] }]);
			this.fill([...older.data.reverse(), ...newer.data], !older.next_page, !newer.next_page);
			this.selected = seq;
			this.place();
		});
	}

	place() {
		if (this.selected) this.mark(this.selected);
		else this.toEnd();
	}

	page(query) {
		return this.remote.get("/events", { types: this.types, limit: PAGE, brief: true, ...query });
	}

	fill(events, began, ended) {
		this.rows.clear();
		clear(this.list);
		Object.assign(this, { began, ended });
		this.add(events, false);
		if (!this.rows.size) clear(this.list, none("said"));
		this.seen();
	}

	add(events, before) {
		const made = document.createDocumentFragment();
		const find = (kind, id) => id && [made, this.list].map((each) => each.querySelector(`[data-${kind}="${CSS.escape(id)}"]`)).find(Boolean);
		const rows = [];
		for (const event of events) {
			this.version = Math.max(this.version, event.seq);
			if (this.rows.has(event.seq)) continue;
			const card = this.all ? null : joined(event, find);
			const row = card ?? (this.all ? logRow(event, this) : speaks(event) ? conversationRow(event, this) : null);
			rows.push([event.seq, row]);
			if (card || !row) continue;
			row.dataset.row = event.seq;
			made.append(row);
		}
		if (before) {
			this.rows = new Map([...rows, ...this.rows]);
			this.list.prepend(made);
		} else {
			for (const [seq, row] of rows) this.rows.set(seq, row);
			this.list.querySelector(".empty")?.remove();
			this.list.append(made);
		}
		for (const row of this.partials.values()) this.list.append(row);
	}

	whole(seq) {
		return this.remote.get("/events", { after: seq - 1, before: seq + 1, limit: 1 }).then((page) => page.data[0]);
	}

	async scrolled() {
		const { scrollTop, scrollHeight, clientHeight } = this.scroll;
		if (scrollHeight - clientHeight - scrollTop < 4) this.seen();
		if (this.loading) return;
		const up = scrollTop < NEAR && !this.began;
		const down = scrollHeight - clientHeight - scrollTop < NEAR && !this.ended;
		if (!up && !down) return;
		const seqs = [...this.rows.keys()];
		this.loading = this.page(up ? { before: seqs[0], order: "desc" } : { after: seqs.at(-1) });
		try {
			const page = await this.loading;
			if (up) {
				this.began = !page.next_page;
				const [height, top] = [this.scroll.scrollHeight, this.scroll.scrollTop];
				this.add(page.data.reverse(), true);
				this.scroll.scrollTop = top + this.scroll.scrollHeight - height;
				this.drop(true);
			} else {
				this.ended = !page.next_page;
				this.add(page.data, false);
				this.drop(false);
			}
		} catch (error) {
			toast(error.message, "bad");
		} finally {
			this.loading = null;
		}
		requestAnimationFrame(() => this.scrolled());
	}

	/** Let go of rows at the far end, so that memory stays what it is. */
	drop(fromEnd) {
		const seqs = [...this.rows.keys()];
		const height = this.scroll.scrollHeight;
		const top = this.scroll.scrollTop;
		while (seqs.length > ROWS_MAX) {
			const seq = fromEnd ? seqs.pop() : seqs.shift();
			const row = this.rows.get(seq);
			if (row?.dataset.row === String(seq)) row.remove();
			this.rows.delete(seq);
			if (fromEnd) this.ended = false;
			else this.began = false;
		}
		if (!fromEnd) this.scroll.scrollTop = top - (height - this.scroll.scrollHeight);
	}

	// --- live

	get atEnd() {
		return this.ended && this.scroll.scrollHeight - this.scroll.clientHeight - this.scroll.scrollTop < 80;
	}

	live(event) {
		if (event.partial) return this.piece(event);
		if (event.seq <= this.version) return;
		this.version = event.seq;
		const follow = this.atEnd;
		this.partials.get(event.id)?.remove();
		this.partials.delete(event.id);
		if (this.ended) this.add([event], false);
		if (follow) {
			this.drop(false);
			this.toEnd();
		} else if (speaks(event)) {
			this.unseen += 1;
			this.pill.hidden = false;
			this.pill.textContent = `${count(this.unseen)} new ↓`;
		}
	}

	piece(event) {
		if (!this.ended) return;
		const follow = this.atEnd;
		let row = this.partials.get(event.id);
		if (!row) {
			row = partialRow();
			this.partials.set(event.id, row);
			this.list.append(row);
		}
		if (row.attempt !== undefined && row.attempt !== event.attempt) row.querySelector(".text").textContent = "";
		row.attempt = event.attempt;
		row.querySelector(".text").textContent += visible(textOf(event.data) ?? "");
		if (follow) this.toEnd();
	}

	/** Twice: rows that were never seen have a height of their own when they are shown. */
	toEnd(again = true) {
		this.scroll.scrollTop = this.scroll.scrollHeight;
		this.seen();
		if (again) requestAnimationFrame(() => this.toEnd(false));
	}

	seen() {
		this.unseen = 0;
		this.pill.hidden = this.ended;
		this.pill.textContent = "To the newest ↓";
	}

	/** The row that shows a seq, or the nearest before it. */
	near(seq) {
		let found = null;
		for (const [each, row] of this.rows) {
			if (each > seq && found) break;
			if (row?.isConnected) found = row;
			if (each >= seq && found) break;
		}
		return found;
	}

	async go(seq) {
		const seqs = [...this.rows.keys()];
		if (!seqs.length || seq < seqs[0] || (seq > seqs.at(-1) && !this.ended)) await this.open(seq);
		else this.mark(seq);
	}

	mark(seq) {
		this.selected = seq;
		for (const each of this.list.querySelectorAll(".selected")) each.classList.remove("selected");
		const row = this.near(seq);
		if (!row) return;
		row.classList.add("selected");
		row.scrollIntoView({ block: "nearest" });
	}

	pick(seq) {
		this.mark(seq);
		this.picked(seq);
	}

	step(by) {
		const shown = [...this.list.querySelectorAll("[data-row]")];
		const at = shown.findIndex((each) => each.classList.contains("selected"));
		const row = shown[at < 0 ? (by > 0 ? 0 : shown.length - 1) : at + by];
		if (row) this.pick(Number(row.dataset.row));
	}

	async search(by) {
		const q = this.box.value.trim();
		if (!q) return this.box.focus();
		const from = this.selected ?? (by > 0 ? 0 : this.version + 1);
		const query = { q, types: this.types, limit: 1, order: by > 0 ? "asc" : "desc", ...(by > 0 ? { after: from } : { before: from }) };
		this.found.textContent = "searching…";
		try {
			for (let page = { next_page: null }, n = 0; n < SEARCH_PAGES_MAX; n += 1) {
				page = await this.remote.get("/search", { ...query, page: page.next_page });
				if (page.data.length) {
					this.found.textContent = `#${page.data[0].seq}`;
					await this.go(page.data[0].seq);
					return this.picked(page.data[0].seq);
				}
				if (!page.next_page) break;
			}
			this.found.textContent = by > 0 ? "no later match" : "no earlier match";
		} catch (error) {
			this.found.textContent = visible(error.message);
		}
	}
}
