// The dashboards of limpet.Analytics.

import { h, s, clear, compact, failure, none, template, when } from "./dom.js";
import { OWN, Remote, get } from "./api.js";

const [WIDE, HIGH] = [560, 96];

const hour = (at) => h("span", when(at).slice(0, -3));

function plot({ title, points }) {
	const peak = points.reduce((most, it) => (it.value > most.value ? it : most), { value: 0 });
	const last = points.at(-1)?.shown ?? "–";
	const step = WIDE / Math.max(points.length, 12);
	const column = ({ name, value, shown }, at) => {
		const height = Math.max(2, (value / peak.value) * HIGH);
		return value && s("rect.column", { x: at * step, y: HIGH - height, width: step * 0.8, height }, s("title", `${when(name)}: ${shown}`));
	};
	return h("figure.plot", h("figcaption", h("b", title), h("span", last)), s("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}, now ${last}` }, points.map(column)),
		h("small", points.length ? [hour(points[0].name), peak.value > 0 && h("span", `most ${peak.shown}`), hour(points.at(-1).name)] : "nothing yet"));
}

const table = ({ title, columns, rows }) => rows.length && [h("h2", title), h("div.wide", { tabindex: 0, role: "region", "aria-label": title }, h("table.figures", h("thead", h("tr", columns.map((it) => h("th", { scope: "col" }, it)))), h("tbody", rows.map((row) => h("tr", row.map((it) => h("td", it)))))))];

const note = ({ text, bad, sessions }) => h(`li.finding${bad ? ".bad" : ""}`, text, sessions.slice(0, 3).map((it) => h("a", { href: new Remote(it).href }, it.id)));

export function analytics() {
	const root = h("div.page", template("analytics"));
	const body = root.lastChild;
	let timer, shown;
	(async function load() {
		try {
			const found = await get(`${OWN}/analytics`);
			if (timer === null) return;
			if (shown !== (shown = JSON.stringify(found))) clear(body, h("p.lead", `Sessions: ${compact(found.sessions)}.`, !found.complete && " Older events are being read…"), found.notes.length && h("ul.plain", found.notes.map(note)),
				h("div.plots", found.dashboards.map(plot)), found.tables.map(table));
			timer = setTimeout(load, found.complete ? 10_000 : 500);
		} catch (error) {
			shown = clear(body, error.status === 404 ? none("analytics") : failure(error, load));
		}
	})();
	return { title: "Analytics", root, close: () => (timer = clearTimeout(timer) ?? null) };
}
