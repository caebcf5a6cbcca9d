// Two sessions side by side: their states, and their events aligned from where they part.

import { h, clear, count, failure, parts, template } from "./dom.js";
import { Remote } from "./api.js";
import { brief, changes, difference, opText } from "./tree.js";
import { textOf } from "./events.js";

const MOST = 400;
const sign = (event) => `${event.type} ${JSON.stringify(event.data)} ${JSON.stringify(event.ops)}`;
const TYPES = ["user.*", "agent.*", "system.*", "state.*", "session.error", "session.rewound", "effect.*"];

/** Pairs [left, right] of two lists: what is the same is beside each other, then what is alike. */
function aligned(a, b) {
	const [x, y] = [a.map(sign), b.map(sign)];
	const alike = (i, j) => (x[i] === y[j] ? 4 : a[i].type === b[j].type ? 1 : 0);
	const best = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
	for (let i = a.length - 1; i >= 0; i -= 1) for (let j = b.length - 1; j >= 0; j -= 1) best[i][j] = Math.max(best[i + 1][j], best[i][j + 1], alike(i, j) && best[i + 1][j + 1] + alike(i, j));
	const pairs = [];
	for (let i = 0, j = 0; i < a.length || j < b.length;) {
		if (i < a.length && j < b.length && alike(i, j) && best[i][j] === best[i + 1][j + 1] + alike(i, j)) pairs.push([a[i++], b[j++]]);
		else if (j >= b.length || (i < a.length && best[i][j] === best[i + 1][j])) pairs.push([a[i++], null]);
		else pairs.push([null, b[j++]]);
	}
	return pairs;
}

async function parted(a, b) {
	const line = await a.get("/lineage").catch(() => null);
	let found = 0;
	(function look(each) {
		if (!each) return;
		if (each.session.id === b.id || each.session.id === a.id) found = Math.max(found, each.at ?? 0);
		each.forks.forEach(look);
		look(each.parent);
	})(line);
	return found;
}

export async function comparePage(app, app_, user, one, other) {
	const sides = [new Remote(app_, user, one), new Remote(app_, user, other)];
	try {
		const from = await parted(...sides);
		const [a, b] = await Promise.all(sides.map(async (each) => {
			const [{ state }, page] = await Promise.all([each.get("/state"), each.get("/events", { after: from, limit: MOST, types: TYPES, brief: true })]);
			return { state, events: page.data };
		}));
		const cell = (event, remote) => (event ? h("td", h("a", { href: `${remote.href}?seq=${event.seq}` }, `#${event.seq}`), " ", h("b", event.type), h("div", (textOf(event.data) ?? (event.ops.map(opText).join(", ") || brief(event.data?.input ?? event.data?.output ?? event.data, 160))).slice(0, 400))) : h("td.none"));
		const rows = aligned(a.events, b.events).map(([left, right]) => h(`tr${left && right && sign(left) === sign(right) ? ".same" : ".other"}`, cell(left, sides[0]), cell(right, sides[1])));
		const root = h("div.page.compare", template("compare"));
		const [lead, name, state, heads, body] = parts(root, ".lead", "b", ".state", "thead tr", "tbody");
		clear(lead, from ? `They share ${count(from)} events, and part there.` : "They share no history.");
		clear(name, other);
		clear(state, changes(difference(a.state, b.state)));
		clear(heads, sides.map((each) => h("th", { scope: "col" }, h("a", { href: each.href }, each.id))));
		if (rows.length) clear(body, rows);
		return { title: "Compare", close() {}, root };
	} catch (error) {
		return { title: "Compare", close() {}, root: h("div.page", failure(error)) };
	}
}
