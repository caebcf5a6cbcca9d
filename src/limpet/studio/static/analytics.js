// The dashboards of limpet.Analytics as plots, where the server has them.

import { h, s, clear, failure, none, quiet } from "./dom.js";
import { OWN, get } from "./api.js";

function plot({ title, unit = "", points }) {
	const most = Math.max(1e-9, ...points.map((each) => each.value ?? 0));
	const wide = Math.max(1, points.length);
	return h("figure.plot", h("figcaption", h("b", title), ` ${unit}`), s("svg", { viewBox: `0 0 ${wide * 20} 100`, role: "img", "aria-label": `${title}: ${points.map((each) => `${each.name} ${each.value}`).join(", ")}` },
		points.map((each, at) => s("rect.column", { x: at * 20 + 3, y: 98 - (92 * (each.value ?? 0)) / most, width: 14, height: (92 * (each.value ?? 0)) / most + 2, rx: 2 }, s("title", `${each.name}: ${each.value}`)))));
}

export function analytics(app) {
	const body = h("div", quiet("Reading…"));
	(async () => {
		try {
			const found = await get(`${OWN}/analytics`);
			clear(body, h("div.plots", found.dashboards.map(plot)));
		} catch (error) {
			clear(body, error.status === 404 ? none("analytics") : failure(error));
		}
	})();
	app.connection("live");
	return { title: "Analytics", root: h("div.page", h("h1", "Analytics"), body), close() {} };
}
