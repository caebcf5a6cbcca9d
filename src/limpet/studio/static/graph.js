// Drawings: the graph that a session ran through, and the sessions that it belongs to.

import { h, s, clear, into, link, none, quiet, state, visible } from "./dom.js";
import { Remote } from "./api.js";
import { tree } from "./tree.js";

const [W, H, GAP] = [150, 38, 56];

/** Columns of nodes by how far they are from the first, as { name: [x, y] }. */
function layered(names, edges, entry) {
	const depth = new Map([[entry, 0]]);
	const waiting = [entry];
	while (waiting.length) {
		const from = waiting.shift();
		for (const [a, b] of edges) if (a === from && !depth.has(b)) (depth.set(b, depth.get(a) + 1), waiting.push(b));
	}
	const rows = [];
	for (const name of names) (rows[depth.get(name) ?? depth.size] ??= []).push(name);
	const wide = Math.max(...rows.map((row) => row?.length ?? 0));
	const places = {};
	rows.filter(Boolean).forEach((row, y) => row.forEach((name, x) => (places[name] = [(wide - row.length) * (W + 24) / 2 + x * (W + 24) + 12, y * (H + GAP) + 12])));
	return { places, width: wide * (W + 24), height: rows.filter(Boolean).length * (H + GAP) };
}

function arrow([ax, ay], [bx, by], kind) {
	const [x1, y1, x2, y2] = [ax + W / 2, ay + H, bx + W / 2, by];
	const d = by > ay ? `M${x1} ${y1} C${x1} ${y1 + GAP / 2} ${x2} ${y2 - GAP / 2} ${x2} ${y2 - 6}` : `M${ax + W} ${ay + H / 2} C${ax + W + 40} ${ay + H / 2} ${bx + W + 40} ${by + H / 2} ${bx + W + 6} ${by + H / 2}`;
	return s(`path.edge${kind}`, { d, "marker-end": "url(#tip)" });
}

export function graph(remote, go) {
	const root = h("div.graph", quiet("Reading…"));
	into(root, async () => {
		const { graph: name, entry, nodes, edges, path, current } = await remote.get("/graph_run");
		if (!path.length) return none("graph");
		const { places, width, height } = layered([...nodes.map((each) => each[0]), "END"], edges.map(([a, b]) => [a, b ?? "END"]), entry);
		const taken = new Set(path.map((each, at) => `${path[at - 1]?.node}>${each.node}`));
		if (!current) taken.add(`${path.at(-1).node}>END`);
		const shown = h("div.node-state", { "aria-live": "polite" });
		const pick = (node) => {
			const visits = path.filter((each) => each.node === node);
			clear(shown, h("h3", node, " ", node === current && state("running")), visits.length ? visits.map((each, at) => [link(`visit ${at + 1}, event ${each.seq}`, () => go(each.seq)), tree(each.state)]) : quiet("It did not run."));
		};
		const box = (node, at) => s(`g.node${path.some((each) => each.node === node) ? ".ran" : ""}${node === current ? ".current" : ""}`,
			{ transform: `translate(${at})`, tabindex: 0, role: "button", "aria-label": `Node ${visible(node)}`, onclick: () => pick(node), onkeydown: (event) => event.key === "Enter" && pick(node) },
			s("rect", { width: W, height: H, rx: node === "END" ? 19 : 8 }), s("text", { x: W / 2, y: H / 2 + 5, "text-anchor": "middle" }, node.slice(0, 18)));
		pick(current ?? path.at(-1).node);
		return [h("h3", name), s("svg.drawing", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": `Graph ${visible(name)}` },
			s("defs", s("marker", { id: "tip", viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" }, s("path", { d: "M0 0 L8 4 L0 8 z" }))),
			edges.map(([a, b, may]) => places[a] && arrow(places[a], places[b ?? "END"], (may ? ".may" : "") + (taken.has(`${a}>${b ?? "END"}`) ? ".taken" : ""))),
			Object.entries(places).map(([node, at]) => box(node, at))), quiet(`Path: ${path.map((each) => each.node).join(" → ")}`), shown];
	});
	return root;
}

/** Lanes: the session, and each that it is related to, with how. */
export function family(remote) {
	const root = h("div.family", quiet("Reading…"));
	into(root, async () => {
		const [found, lineage] = await Promise.all([remote.get("/graph", { limit: 60 }), remote.get("/lineage").catch(() => null)]);
		const at = new Map();
		(function note(line) {
			if (!line) return;
			at.set(Remote.of(line.session).name, line.at);
			note(line.parent);
			line.forks.forEach(note);
		})(lineage);
		const lanes = found.nodes.map((node) => ({ remote: Remote.of(node.session), phase: node.phase }));
		const places = new Map(lanes.map((each, row) => [each.remote.name, row]));
		const [left, step] = [12, 48];
		const edges = found.edges.map((edge, n) => ({ ...edge, from: places.get(Remote.of(edge.source).name), to: places.get(Remote.of(edge.target).name), x: left + 24 + (n % 8) * 22 })).filter((edge) => edge.from !== undefined && edge.to !== undefined);
		if (!edges.length) return none("related");
		const lines = lanes.map((_, row) => s("path.lane", { d: `M${left} ${row * step + 22} H210` }));
		return h("div.lanes", s("svg", { viewBox: `0 0 220 ${lanes.length * step}`, width: 220, height: lanes.length * step, "aria-hidden": "true" }, lines,
			edges.map((edge) => s(`path.link.${edge.kind}`, { d: `M${edge.x} ${edge.from * step + 22} V${edge.to * step + 22} h14` })), lanes.map((each, row) => s(`circle${each.remote.name === remote.name ? ".here" : ""}`, { cx: left, cy: row * step + 22, r: 6 }))),
		h("ol.plain", lanes.map((each) => {
			const mine = edges.filter((edge) => lanes[edge.to] === each).map((edge) => `${edge.kind} of ${lanes[edge.from].remote.id}${edge.kind === "fork" && at.get(each.remote.name) ? ` at event ${at.get(each.remote.name)}` : ""}`);
			const fork = each.remote.name !== remote.name && each.remote.app === remote.app && each.remote.user === remote.user;
			return h("li", h("a", { href: each.remote.href }, each.remote.name === remote.name ? h("b", each.remote.id) : each.remote.id), " ", state(each.phase), h("small.quiet", ` ${mine.join(", ")} `),
				fork && h("a", { href: remote.compared(each.remote.id) }, "Compare"));
		})));
	});
	return root;
}
