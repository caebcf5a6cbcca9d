// Wakes as waterfalls: each span a bar, idle time folded, tokens and cost beside it.

import { h, s, clear, compact, failure, money, none, span as time, state, visible, when } from "./dom.js";

const WIDTH = 1000;
const FOLDED = 26; // the width of an idle time
const IDLE = 0.18; // of a wake's time, from which on it is folded
const WAKES = 30;

export class Trace {
	constructor(remote, { picked }) {
		Object.assign(this, { remote, picked, wakes: new Map(), selected: null });
		this.list = h("div.wakes");
		this.more = h("button.link", { hidden: true, onclick: () => this.load(this.limit * 4) }, "Earlier wakes");
		this.root = h("div.trace", this.list, this.more);
		this.seen = new IntersectionObserver((entries) => entries.filter((each) => each.isIntersecting).forEach((each) => this.fill(each.target.wake)));
		this.load(WAKES);
	}

	async load(limit = this.limit) {
		this.limit = Math.min(1000, limit);
		try {
			const found = (await this.remote.get("/traces", { limit: this.limit })).data;
			if (!found.length) return clear(this.list, none("ran"));
			this.more.hidden = found.length < this.limit || this.limit === 1000;
			found.forEach((event, at) => this.add(event, found[at - 1]));
			if (!this.showsSome) this.fill(found[0].wake_id);
		} catch (error) {
			clear(this.list, failure(error, () => this.load()));
		}
	}

	/** The newest is first; those that are there already stay as they are. */
	add(event, newer) {
		if (this.wakes.has(event.wake_id)) return;
		if (!this.wakes.size) clear(this.list);
		const body = h("div.spans");
		const root = h("section.woken", h("header", h("b", `${event.data.why ?? "wake"}`), h("span.quiet", when(event.at)),
			event.data.attempt > 1 && h("span.chip", `attempt ${event.data.attempt}`), h("span.sum")), body);
		Object.assign(root, { wake: event.wake_id });
		const wake = { id: event.wake_id, root, body, from: event.seq, to: event.seq, at: Date.parse(event.at), trace: null };
		this.wakes.set(event.wake_id, wake);
		const after = newer && this.wakes.get(newer.wake_id);
		if (after) {
			const idle = (after.at - wake.at) / 1000;
			if (idle > 60) after.root.after(h("div.idle", `idle for ${time(idle)}`), root);
			else after.root.after(root);
		} else this.list.prepend(root);
		this.seen.observe(root);
	}

	async fill(id, again = false) {
		const wake = this.wakes.get(id);
		if (!wake || (wake.trace && !again)) return;
		this.showsSome = true;
		wake.trace ??= "loading";
		try {
			wake.trace = await this.remote.get(`/traces/${encodeURIComponent(id)}`, { brief: true });
		} catch (error) {
			wake.trace = null;
			return clear(wake.body, h("p.warning", error.message));
		}
		wake.to = wake.trace.events.at(-1)?.seq ?? wake.to;
		this.draw(wake);
	}

	draw(wake) {
		const { spans, events, activation } = wake.trace;
		const now = Date.now() * 1000;
		const end = (each) => each.ended_us ?? now;
		const scale = folded(spans, end);
		const cost = spans.reduce((sum, each) => sum + (each.cost ?? 0), 0);
		const used = (each) => (each.usage?.input ?? 0) + (each.usage?.output ?? 0);
		const tokens = spans.reduce((sum, each) => sum + used(each), 0);
		const took = (each) => time((end(each) - each.started_us) / 1e6);
		clear(wake.root.querySelector(".sum"), state(activation.result ?? "running"), ` ${took(spans[0])}`,
			tokens && ` · ${compact(tokens)} tokens`, cost && ` · ${money(cost)}`);
		const depth = new Map([[null, -1]]);
		wake.rows = spans.map((each) => {
			depth.set(each.id, (depth.get(each.parent) ?? -1) + 1);
			const [from, to] = [scale.at(each.started_us), scale.at(end(each))];
			const seqs = events.filter((event) => event.data?.span_id === each.id).map((event) => event.seq);
			const range = [Math.min(...seqs, wake.to), each.ended_us ? Math.max(...seqs, wake.from) : Infinity];
			const about = events.find((event) => event.seq >= range[0] && event.seq <= range[1] && !event.type.startsWith("span."));
			const label = visible(`${each.kind} ${each.name}, ${took(each)}${each.error ? `, ${each.error}` : ""}`);
			const row = h("button.span", { "aria-label": label, title: label, onclick: () => this.picked(about?.seq ?? range[0]) },
				h(`span.label.indent${Math.min(6, depth.get(each.id))}`, h(`i.kind.${each.kind}`), h("span", each.name)),
				s("svg", { viewBox: `0 0 ${WIDTH} 16`, preserveAspectRatio: "none", "aria-hidden": "true" },
					scale.folds.map((x) => s("rect.fold", { x, y: 0, width: FOLDED, height: 16 })),
					s(`rect.bar.${each.kind}${each.error || each.result === "error" ? ".bad" : ""}${each.ended_us ? "" : ".open"}`, { x: from, y: 3, width: Math.max(4, to - from), height: 10, rx: 3 })),
				h("span.took", each.ended_us ? took(each) : "…", each.usage && h("small", ` ${compact(used(each))} tok`, each.cost && ` ${money(each.cost)}`)));
			return { row, range, id: each.id };
		});
		clear(wake.body, wake.rows.map((each) => each.row), activation.error && h("p.warning", activation.error));
		if (this.selected) this.mark(this.selected);
	}

	/** Show the bar of an event: the innermost span around it. */
	async mark(seq) {
		this.selected = seq;
		const wake = [...this.wakes.values()].filter((each) => each.from <= seq).sort((a, b) => b.from - a.from)[0];
		if (wake && !wake.trace) return this.fill(wake.id);
		for (const each of this.root.querySelectorAll(".selected")) each.classList.remove("selected");
		const inside = wake?.rows?.filter(({ range }) => range[0] <= seq && seq <= range[1]) ?? [];
		const row = inside.sort((a, b) => a.range[1] - a.range[0] - (b.range[1] - b.range[0]))[0]?.row;
		row?.classList.add("selected");
		row?.scrollIntoView({ block: "nearest" });
	}

	live(event) {
		if (event.type === "span.started" && event.data?.kind === "wake") {
			this.add(event);
			this.fill(event.wake_id);
		} else if (event.wake_id && event.type.startsWith("span.") && this.wakes.has(event.wake_id)) this.fill(event.wake_id, true);
	}

	close() {
		this.seen.disconnect();
	}
}

/** Places on the bar for times: what nobody works in, if it is long, takes little room. */
function folded(spans, end) {
	const inner = spans.length > 1 ? spans.slice(1) : spans;
	const first = spans[0].started_us;
	const last = Math.max(...spans.map(end));
	const busy = inner.map((each) => [each.started_us, end(each)]).sort((a, b) => a[0] - b[0]);
	const idle = [];
	let until = first;
	for (const [from, to] of [...busy, [last, last]]) {
		if (from - until > Math.max(1e6, (last - first) * IDLE)) idle.push([until, from]);
		until = Math.max(until, to);
	}
	const worked = Math.max(1, last - first - idle.reduce((sum, [from, to]) => sum + to - from, 0));
	const room = WIDTH - idle.length * FOLDED;
	const folds = [];
	const at = (us) => {
		let x = 0;
		let from = first;
		for (const [start, stop] of idle) {
			if (us <= start) break;
			x += ((start - from) / worked) * room;
			if (us < stop) return x + FOLDED / 2;
			x += FOLDED;
			from = stop;
		}
		return x + ((Math.max(us, from) - from) / worked) * room;
	};
	for (const [start] of idle) folds.push(at(start));
	return { at, folds };
}
