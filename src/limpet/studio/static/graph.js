// Drawings: the graph of a session, and its family.

import { h, s, clear, into, link, none, quiet, state, visible, SAY } from "./dom.js";
import { Remote } from "./api.js";
import { tree } from "./tree.js";

const [W, H, GAP] = [150, 38, 56];
const LANES = 60; // sessions shown at once

/** Rows of nodes, each below those that lead to it, the end last: { name: [x, y] }. */
function layered(names, edges, entry) {
	const order = [entry];
	const depth = new Map([[entry, 0]]);
	for (const from of order) for (const [a, b] of edges) if (a === from && !order.includes(b)) order.push(b); // it goes on to what is added
	for (const from of order) for (const [a, b] of edges) if (a === from && order.indexOf(b) > order.indexOf(a)) depth.set(b, Math.max(depth.get(b) ?? 0, depth.get(a) + 1));
	depth.set("END", names.length);
	const all = [];
	for (const name of names) (all[depth.get(name) ?? names.length - 1] ??= []).push(name);
	const rows = all.filter(Boolean);
	const wide = Math.max(...rows.map((row) => row.length));
	const [places, room] = [{}, W + 24];
	rows.forEach((row, y) => row.forEach((name, x) => (places[name] = [((wide - row.length) / 2 + x) * room + 12, y * (H + GAP) + 12])));
	return { places, width: wide * room, height: rows.length * (H + GAP) };
}

function arrow([ax, ay], [bx, by], kind) {
	const [x1, y1, x2, y2] = [ax + W / 2, ay + H, bx + W / 2, by];
	const d = by > ay ? `M${x1} ${y1} C${x1} ${y1 + GAP / 2} ${x2} ${y2 - GAP / 2} ${x2} ${y2 - 6}` : `M${ax + W} ${ay + 25} C${ax + W + 40} ${ay + 25} ${bx + W + 40} ${by + 13} ${bx + W + 6} ${by + 13}`;
	return s(`path.edge${kind}`, { d, "marker-end": "url(#tip)" });
}

/** A place drawn when it is shown, and again when what it reads has changed. */
function drawing(kind, read, draw) {
	const root = h(kind, quiet("Reading…"));
	let last;
	root.renew = () => into(root, async () => {
		const found = await read();
		return last === (last = JSON.stringify(found)) ? null : draw(found);
	});
	return root;
}

export function graph(remote, go) {
	let picked;
	return drawing("div.graph", () => remote.get("/graph_run"), (run) => {
		const { graph: name, entry, nodes, path, current, stop_reason: stopped } = run;
		if (!nodes.length) return none("graph");
		const edges = run.edges.map(([a, b, may]) => [a, b ?? "END", may]);
		const { places, width, height } = layered([...nodes.map((it) => it[0]), "END"], edges, entry);
		const way = [...path.map((it) => it.node), current ?? "END"];
		const taken = new Set(way.map((it, at) => `${way[at - 1]}>${it}`));
		const shown = h("div.node-state", { "aria-live": "polite" });
		const pick = (node) => {
			const visits = path.filter((it) => it.node === node);
			clear(shown, h("h2", node, " ", node === current && state(stopped ?? "running")), visits.length ? visits.map((it, at) => [link(`visit ${at + 1}, event ${it.seq}`, () => go(it.seq)), tree(it.state)]) : quiet(node === current ? SAY.unended : SAY.unrun));
		};
		const choose = (node) => pick((picked = node));
		const box = (node, at) => s(`g.node${path.some((it) => it.node === node) ? ".ran" : ""}${node === current ? ".current" : ""}`,
			{ transform: `translate(${at})`, tabindex: 0, role: "button", "aria-label": `Node ${visible(node)}`, onclick: () => choose(node), onkeydown: (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), choose(node)) },
			s("title", node), s("rect", { width: W, height: H, rx: node === "END" ? 19 : 8 }), s("text", { x: W / 2, y: H / 2 + 5, "text-anchor": "middle" }, node.length > 18 ? `${node.slice(0, 17)}…` : node));
		const lines = edges.map(([a, b, may]) => [a, b, (may ? ".may" : "") + (taken.has(`${a}>${b}`) ? ".taken" : "")]);
		lines.sort((one, other) => one[2].length - other[2].length); // the way taken lies above
		pick(picked ?? current ?? path.at(-1)?.node ?? entry);
		return [h("h2", name), s("svg.drawing", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": `Graph ${visible(name)}` },
			lines.map(([a, b, kind]) => places[a] && arrow(places[a], places[b], kind)),
			Object.entries(places).map(([node, at]) => box(node, at))), path.length > 0 && quiet(`Path: ${path.map((it) => it.node).join(" → ")}`), shown];
	});
}

/** Lanes: the session, and each that it is related to. */
export function family(remote) {
	return drawing("div.family", () => remote.get("/graph", { limit: LANES }), (found) => {
		const lanes = found.nodes.map((node) => Object.assign(new Remote(node.session), node));
		const row = (key) => lanes.findIndex((it) => it.name === new Remote(key).name);
		const edges = found.edges.map((edge, n) => ({ ...edge, from: row(edge.source), to: row(edge.target), x: 28 + (n % 6) * 11 })).filter(({ from, to }) => from >= 0 && to >= 0);
		if (!edges.length) return none("related");
		const y = (row) => row * 48 + 22;
		const drawn = s("svg", { width: 100, height: lanes.length * 48, "aria-hidden": "true" }, lanes.map((_, row) => s("path.lane", { d: `M12 ${y(row)} H100` })),
			edges.map(({ kind, x, from, to }) => s(`path.link.${kind}`, { d: `M${x} ${y(from)} V${y(to)} h9` })), lanes.map((it, row) => s(`circle${it.name === remote.name ? ".here" : ""}`, { cx: 12, cy: y(row), r: 6 })));
		return [h("div.lanes", drawn, h("ol.plain", lanes.map((it, row) => {
			const how = edges.filter((edge) => edge.to === row).map(({ kind, from }) => `${kind} ${kind === "reference" ? "from" : "of"} ${lanes[from].id}${kind === "fork" && it.forked_at ? ` at event ${it.forked_at}` : ""}`);
			const same = it.name === remote.name;
			return h("li", h("a", { href: it.href }, same ? h("b", it.id) : it.id), state(it.phase), h("small.quiet", how.join(", ")),
				!same && it.app === remote.app && it.user === remote.user && h("a", { href: remote.compared(it.id) }, "Compare"));
		}))), found.truncated && quiet(`The nearest ${LANES} are shown.`)];
	});
}
