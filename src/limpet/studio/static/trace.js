// Wakes as waterfalls: each span a bar, idle time folded, tokens and cost beside it.

import { h, on, one, s, chip, clear, compact, count, link, money, near, none, refocused, select, span as time, state, template, throttle, visible, when, wrong } from "./dom.js";

const WIDTH = 1000;
const FOLDED = 26; // the width of an idle time
const IDLE = 0.18; // of a wake's time: longer is folded
const WAKES = 30;
const SPANS = 300; // of a wake drawn at once

export function waterfalls(remote, picked) {
	const wakes = new Map();
	const stale = new Set();
	const root = h("div.trace", template("trace"));
	const [later, list, more] = root.children;
	on(more, "click", () => load(last.seq));
	on(later, "click", () => mark(null));
	const seen = new IntersectionObserver((entries) => entries.filter((it) => it.isIntersecting).forEach((it) => fill(it.target.wake)));
	const renew = throttle(300, () => (stale.forEach((id) => fill(id, true)), stale.clear()), 4);
	let [asked, end, last, selected, sought] = [0, Infinity]; // from `last` to `end` is shown
	load();

	/** Show the wakes before a seq, or the newest; `anew`: instead of those shown. */
	async function load(before, anew) {
		const number = (asked += 1);
		try {
			const found = (await remote.get("/traces", { limit: WAKES, before })).data;
			if (number !== asked) return;
			if (!wakes.size && !found.length) return clear(list, none("ran"));
			if (anew && found.length) (wakes.clear(), (last = null), (end = before ?? Infinity));
			more.hidden = found.length < WAKES;
			later.hidden = end === Infinity;
			for (const event of found) (add(event, last), (last = event));
			highlight();
		} catch (error) {
			wrong(error, wakes.size, list, () => load(before));
		}
	}

	/** The newest is first; what is there stays. */
	function add(event, newer) {
		if (wakes.has(event.wake_id)) return;
		if (!wakes.size) clear(list);
		const body = h("div.spans");
		const root = h("section.woken", h("header", h("b", event.data.why ?? "wake"), h("span.quiet", when(event.at)),
			event.data.attempt > 1 && chip(`attempt ${event.data.attempt}`), h("span.sum")), body);
		root.wake = event.wake_id;
		const wake = { id: event.wake_id, root, body, from: event.seq, to: event.seq, at: Date.parse(event.at), trace: null };
		wakes.set(event.wake_id, wake);
		const after = newer && wakes.get(newer.wake_id);
		if (after) {
			const idle = (after.at - wake.at) / 1000;
			after.root.after(idle > 60 ? h("div.idle", `idle for ${time(idle)}`) : "", root);
		} else list.prepend(root);
		seen.observe(root);
	}

	async function fill(id, again = false) {
		const wake = wakes.get(id);
		if (!wake || (wake.trace && !again)) return;
		wake.trace ??= "loading";
		try {
			wake.trace = await remote.get(`/traces/${encodeURIComponent(id)}`, { brief: true });
		} catch (error) {
			wake.trace = null;
			return clear(wake.body, h("p.warning", error.message));
		}
		wake.to = wake.trace.events.at(-1)?.seq ?? wake.to;
		draw(wake);
	}

	function draw(wake) {
		const { spans, events, activation } = wake.trace;
		const now = Date.now() * 1000;
		const end = (it) => it.ended_us ?? now;
		const scale = folded(spans, end);
		const used = (it) => (it.usage?.input ?? 0) + (it.usage?.output ?? 0);
		const sum = (of) => spans.reduce((all, it) => all + of(it), 0);
		const [tokens, cost] = [sum(used), sum((it) => it.cost ?? 0)];
		const took = (it) => time((end(it) - it.started_us) / 1e6);
		clear(one(wake.root, ".sum"), state(activation.result ?? "running"), spans[0].ended_us && ` ${took(spans[0])}`,
			tokens && ` · ${compact(tokens)} tokens`, cost && ` · ${money(cost)}`);
		const depth = new Map([[null, -1]]);
		const others = events.filter((event) => !event.type.startsWith("span."));
		const own = Map.groupBy(events, (event) => event.data?.span_id);
		wake.rows = spans.slice(0, wake.most ?? SPANS).map((it) => {
			depth.set(it.id, (depth.get(it.parent) ?? -1) + 1);
			const [from, to] = [scale.at(it.started_us), scale.at(end(it))];
			const seqs = (own.get(it.id) ?? []).map((event) => event.seq);
			const range = [Math.min(...seqs, wake.to), it.ended_us ? Math.max(...seqs, wake.from) : Infinity];
			const about = others.find((event) => event.seq >= range[0] && event.seq <= range[1]);
			const label = visible(`${it.kind} ${it.name}, ${took(it)}${it.error ? `, ${it.error}` : ""}`);
			const row = h("button.span", { "aria-label": label, title: label, onclick: () => picked(about?.seq ?? range[0]) },
				h(`span.label.indent${Math.min(6, depth.get(it.id))}`, h(`i.kind.${it.kind}`), h("span", it.name)),
				s("svg", { viewBox: `0 0 ${WIDTH} 16`, preserveAspectRatio: "none", "aria-hidden": "true" },
					scale.folds.map((x) => s("rect.fold", { x, y: 0, width: FOLDED, height: 16 })),
					s(`rect.bar.${it.kind}${it.error || it.result === "error" ? ".bad" : ""}${it.ended_us ? "" : ".open"}`, { x: from, y: 3, width: Math.max(4, to - from), height: 10, rx: 3 })),
				h("span.took", it.ended_us ? took(it) : "…", it.usage && h("small", ` ${compact(used(it))} tok`, it.cost && ` ${money(it.cost)}`)));
			return { row, range };
		});
		const rest = () => ((wake.most = Infinity), draw(wake));
		refocused(wake.body, () => clear(wake.body, wake.rows.map((it) => it.row), spans.length > wake.rows.length && link(`All ${count(spans.length)} spans`, rest), activation.error && h("p.warning", activation.error)));
		highlight();
	}

	/** Show the bar of an event: the innermost span around it. Without one, the newest wakes. */
	function mark(seq) {
		[selected, sought] = [seq, true];
		if (seq ? seq >= end || (seq < last?.seq && !more.hidden) : end < Infinity) load(seq ? seq + 1 : undefined, true);
		else highlight();
	}

	function highlight() {
		const seq = selected;
		if (!seq) return select(root);
		const wake = [...wakes.values()].filter((it) => it.from <= seq).sort((a, b) => b.from - a.from)[0];
		if (wake && !wake.trace) return fill(wake.id);
		const inside = wake?.rows?.filter(({ range }) => range[0] <= seq && seq <= range[1]) ?? [];
		const row = inside.sort((a, b) => a.range[1] - a.range[0] - (b.range[1] - b.range[0]))[0]?.row;
		select(root, row);
		if (sought) near(row); // once: live bars move nothing
		if (row) sought = false;
	}

	function live(event) {
		if (!event.wake_id || !event.type.startsWith("span.")) return;
		if (event.type === "span.started" && event.data?.kind === "wake" && end === Infinity) add(event);
		stale.add(event.wake_id);
		renew();
	}

	return { root, mark, live };
}

/** Places for times: long idle time takes little room. */
function folded(spans, end) {
	const inner = spans.length > 1 ? spans.slice(1) : spans;
	const first = spans[0].started_us;
	const last = Math.max(...spans.map(end));
	const busy = inner.map((it) => [it.started_us, end(it)]).sort((a, b) => a[0] - b[0]);
	const idle = [];
	let until = first;
	for (const [from, to] of [...busy, [last, last]]) {
		if (from - until > Math.max(1e6, (last - first) * IDLE)) idle.push([until, from]);
		until = Math.max(until, to);
	}
	const worked = Math.max(1, last - first - idle.reduce((sum, [from, to]) => sum + to - from, 0));
	const room = WIDTH - idle.length * FOLDED;
	const at = (us) => idle.reduce((x, [from, to]) => {
		const passed = Math.min(1, Math.max(0, (us - from) / (to - from)));
		return x + passed * (FOLDED - ((to - from) / worked) * room);
	}, ((Math.max(us, first) - first) / worked) * room);
	return { at, folds: idle.map(([from]) => at(from)) };
}
