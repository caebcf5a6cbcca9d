// What waits for a person, the oldest first, and the answers to it.

import { h, all, on, ago, anchor, ask, chip, clear, filled, none, parts, quiet, since, template, throttle, toast, wrong, SAY } from "./dom.js";
import { OWN, Remote, get, listen, session } from "./api.js";
import { parsed } from "./travel.js";
import { tree } from "./tree.js";

/** The buttons that answer a request, for those who may. */
function answers(remote, request, done) {
	if (!session.may("write") || (session.me.app && request.kind === "promotion")) return quiet(SAY.lookOnly);
	const made = h("div.buttons", template(`answers-${request.kind}`));
	for (const it of all(made, "button")) on(it, "click", async () => {
		const body = { request_id: request.id, ...JSON.parse(it.dataset.body ?? "{}") };
		const answer = await ask(`ask-${it.name}`, request, ({ note, output }) => remote.post(`/${it.value}`, { ...body, note: note || undefined, output: output && parsed(output) }));
		if (answer) (toast(`Recorded as ${session.me.id}.`), done());
	});
	return made;
}

export function requestCard(remote, request, asked, done, linked = true) {
	const { id, kind, name, input, deadline } = request;
	const unknown = kind === "unknown_effect";
	const { args, why, ...more } = unknown ? input : { args: input };
	const left = deadline && -since(deadline);
	return h(`article.request${unknown ? ".unsure" : ""}`, { "data-request-id": id },
		h("header", chip(kind.replace("_", " "), unknown ? "bad" : "warn"), h("b", name), asked && h("span.quiet", "asked ", ago(asked)),
			left && h(`span.chip.${left < 3600 ? "bad" : "warn"}`, left > 0 ? ["expires ", ago(deadline)] : "expired"), linked && anchor(remote)),
		unknown && template("may-have-happened"),
		why && quiet(why), args != null && h("div.input", h("small", "input "), tree(args, { open: JSON.stringify(args).length < 9_999 })), unknown && h("details", h("summary", "What is known"), tree(more)), answers(remote, request, done));
}

export function inbox(app) {
	const root = h("div.page", template("inbox"));
	const [list, more] = parts(root, ".requests", ".more");
	on(more, "click", () => load(next));
	let next;
	const shown = new Map();
	async function load(page) {
		try {
			const found = await get(`${OWN}/inbox`, { limit: Math.min(1000, Math.max(100, shown.size)), page });
			const ids = new Set(found.data.map((it) => it.request.id));
			const last = found.next_page && found.data.at(-1)?.request.id; // later ones may still wait
			if (!page && last !== undefined) for (const [id, card] of shown) {
				if (!ids.has(id)) (card.remove(), shown.delete(id));
				if (id === last) break;
			}
			filled(list);
			for (const it of found.data) {
				if (shown.has(it.request.id)) continue;
				const card = requestCard(new Remote(it.key), it.request, it.since, () => load());
				shown.set(it.request.id, card);
				list.append(card);
			}
			next = found.next_page;
			more.hidden = !next;
			app.waiting(shown.size, next);
			if (!shown.size) clear(list, none("waits"));
		} catch (error) {
			wrong(error, shown.size, list, () => load());
		}
	}
	load();
	listen("events/stream", {}, throttle(300, () => load()), app.connection);
	return { title: "Inbox", root };
}
