// Drawings: the graph of a session, and its family.

import { h, s, clear, into, link, none, quiet, state, visible } from "./dom.js";
import { Remote } from "./api.js";
import { tree } from "./tree.js";

const [W, H, GAP] = [150, 38, 56];
const LANES = 60; // sessions that are shown at once

/** Columns of nodes by their distance from the first: { name: [x, y] }. */
function layered(names, edges, entry) {
	const depth = new Map([[entry, 0]]);
	for (const [from, far] of depth) for (const [a, b] of edges) if (a === from && !depth.has(b)) depth.set(b, far + 1); // it goes on to what is added
	const all = [];
	for (const name of names) (all[depth.get(name) ?? depth.size] ??= []).push(name);
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

/** A place that is drawn when it is shown, and again when what it reads has changed. */
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
		const { graph: name, entry, nodes, edges, path, current } = run;
		if (!path.length) return none("graph");
		const { places, width, height } = layered([...nodes.map((it) => it[0]), "END"], edges.map(([a, b]) => [a, b ?? "END"]), entry);
		const taken = new Set(path.map((it, at) => `${path[at - 1]?.node}>${it.node}`));
		if (!current) taken.add(`${path.at(-1).node}>END`);
		const shown = h("div.node-state", { "aria-live": "polite" });
		const pick = (node) => {
			const visits = path.filter((it) => it.node === node);
			clear(shown, h("h2", node, " ", node === current && state("running")), visits.length ? visits.map((it, at) => [link(`visit ${at + 1}, event ${it.seq}`, () => go(it.seq)), tree(it.state)]) : quiet("It did not run."));
		};
		const choose = (node) => pick((picked = node));
		const box = (node, at) => s(`g.node${path.some((it) => it.node === node) ? ".ran" : ""}${node === current ? ".current" : ""}`,
			{ transform: `translate(${at})`, tabindex: 0, role: "button", "aria-label": `Node ${visible(node)}`, onclick: () => choose(node), onkeydown: (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), choose(node)) },
			s("title", node), s("rect", { width: W, height: H, rx: node === "END" ? 19 : 8 }), s("text", { x: W / 2, y: H / 2 + 5, "text-anchor": "middle" }, node.length > 18 ? `${node.slice(0, 17)}…` : node));
		const lines = edges.map(([a, b, may]) => [a, b ?? "END", (may ? ".may" : "") + (taken.has(`${a}>${b ?? "END"}`) ? ".taken" : "")]);
		lines.sort((one, other) => one[2].length - other[2].length); // the way that was taken lies above
		pick(picked ?? current ?? path.at(-1).node);
		return [h("h2", name), s("svg.drawing", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": `Graph ${visible(name)}` },
			lines.map(([a, b, kind]) => places[a] && arrow(places[a], places[b], kind)),
			Object.entries(places).map(([node, at]) => box(node, at))), quiet(`Path: ${path.map((it) => it.node).join(" → ")}`), shown];
	});
}

/** Lanes: the session, and each that it is related to. */
export function family(remote) {
	return drawing("div.family", () => remote.get("/graph", { limit: LANES }), (found) => {
		const lanes = found.nodes.map((node) => Object.assign(Remote.of(node.session), node));
		const row = (key) => lanes.findIndex((it) => it.name === Remote.of(key).name);
		const edges = found.edges.map((edge, n) => ({ ...edge, from: row(edge.source), to: row(edge.target), x: 28 + (n % 6) * 11 })).filter((edge) => edge.from >= 0 && edge.to >= 0);
		if (!edges.length) return none("related");
		const y = (row) => row * 48 + 22;
		const drawn = s("svg", { width: 100, height: lanes.length * 48, "aria-hidden": "true" }, lanes.map((_, row) => s("path.lane", { d: `M12 ${y(row)} H100` })),
			edges.map((edge) => s(`path.link.${edge.kind}`, { d: `M${edge.x} ${y(edge.from)} V${y(edge.to)} h9` })), lanes.map((it, row) => s(`circle${it.name === remote.name ? ".here" : ""}`, { cx: 12, cy: y(row), r: 6 })));
		return [h("div.lanes", drawn, h("ol.plain", lanes.map((it, row) => {
			const how = edges.filter((edge) => edge.to === row).map(({ kind, from }) => `${kind} ${kind === "reference" ? "from" : "of"} ${lanes[from].id}${kind === "fork" && it.forked_at ? ` at event ${it.forked_at}` : ""}`);
			const same = it.name === remote.name;
			return h("li", h("a", { href: it.href }, same ? h("b", it.id) : it.id), " ", state(it.phase), h("small.quiet", ` ${how.join(", ")} `),
				!same && it.app === remote.app && it.user === remote.user && h("a", { href: remote.compared(it.id) }, "Compare"));
		}))), found.truncated && quiet(`The nearest ${LANES} are shown.`)];
	});
}
