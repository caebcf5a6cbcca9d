// Two sessions side by side: their states, and their events aligned from where they part.

import { h, clear, count, parts, template } from "./dom.js";
import { Remote } from "./api.js";
import { brief, changes, opText } from "./tree.js";
import { textOf } from "./events.js";

const MOST = 400;
const sign = ({ type, data, ops, brief, link }) => JSON.stringify([type, data, ops, brief && link]); // the same only if whole
const TYPES = ["user.*", "agent.*", "system.*", "state.*", "session.error", "session.rewound", "effect.*"];
const said = ({ name, input, output, args = input, result = output, ...more }) => `${name ?? ""} ${brief(args ?? result ?? (name ? undefined : more), 160)}`;

/** Pairs [left, right]: beside each other what is the same, then what is alike. */
function aligned(a, b) {
	const [x, y] = [a.map(sign), b.map(sign)];
	const alike = (i, j) => (x[i] === y[j] ? 4 : a[i].type === b[j].type ? 1 : 0);
	const joined = (i, j) => alike(i, j) && best[i + 1][j + 1] + alike(i, j);
	const best = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
	for (let i = a.length - 1; i >= 0; i -= 1) for (let j = b.length - 1; j >= 0; j -= 1) best[i][j] = Math.max(best[i + 1][j], best[i][j + 1], joined(i, j));
	const pairs = [];
	for (let i = 0, j = 0; i < a.length || j < b.length;) {
		if (i < a.length && j < b.length && alike(i, j) && best[i][j] === joined(i, j)) pairs.push([a[i++], b[j++]]);
		else if (j >= b.length || (i < a.length && best[i][j] === best[i + 1][j])) pairs.push([a[i++], null]);
		else pairs.push([null, b[j++]]);
	}
	return pairs;
}

export async function comparePage(app, app_, user, one, other) {
	const sides = [one, other].map((id) => new Remote({ app: app_, user, id }));
	const { changes: different, shared: from } = await sides[0].get("/diff", { other: sides[1].wire });
	const [a, b] = await Promise.all(sides.map(async (it) => (await it.get("/events", { after: from, limit: MOST, types: TYPES, brief: true })).data));
	const cell = (event, remote) => (event ? h("td", h("a", { href: `${remote.href}?seq=${event.seq}` }, `#${event.seq}`), " ", h("b", event.type), h("div", (textOf(event.data) ?? (event.ops.map(opText).join(", ") || said(event.data ?? {}))).slice(0, 400))) : h("td.none"));
	const rows = aligned(a, b).map(([left, right]) => h(`tr${left && right && sign(left) === sign(right) ? ".same" : ".other"}`, cell(left, sides[0]), cell(right, sides[1])));
	const root = h("div.page.compare", template("compare"));
	const [lead, name, state, heads, body] = parts(root, ".lead", "b", ".state", "thead tr", "tbody");
	clear(lead, from ? `They share ${count(from)} events, and part there.` : "They share no history.", [a, b].some((it) => it.length === MOST) && ` The first ${MOST} events of each are compared.`);
	clear(name, other);
	clear(state, changes(different));
	clear(heads, sides.map((it) => h("th", { scope: "col" }, h("a", { href: it.href }, it.id))));
	if (rows.length) clear(body, rows);
	return { title: "Compare", root };
}
