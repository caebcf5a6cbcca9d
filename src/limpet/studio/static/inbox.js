// What waits for a person, the oldest first, and the answers to it.

import { h, ago, ask, chip, clear, failure, none, parts, quiet, since, span, template, throttle, toast } from "./dom.js";
import { OWN, Remote, get, listen, session } from "./api.js";
import { parsed } from "./travel.js";
import { tree } from "./tree.js";

/** The buttons that answer a request, for those who may. */
function answers(remote, request, done) {
	if (!session.may("write")) return quiet("Your key lets you look, not answer.");
	const act = (label, kind, id, part, body) => h(`button.${kind}`, {
		async onclick() {
			const answer = await ask(`ask-${id}`, request, ({ note, output }) =>
				remote.post(part, { request_id: request.id, note: note || undefined, output: output && parsed(output), ...body }));
			if (answer) (toast(`Recorded as ${session.me.id}.`), done());
		},
	}, label);
	if (request.kind === "approval") return h("div.buttons", act("Allow", "primary", "allow", "/confirm", { allow: true }), act("Deny", "danger", "deny", "/confirm", { allow: false }));
	if (request.kind === "question") return h("div.buttons", act("Answer", "primary", "answer", "/answer"));
	const settle = (label, kind, decision) => act(label, kind, decision, "/resolve", { decision });
	return h("div.buttons", request.kind === "unknown_effect" && settle("It happened", "primary", "happened"), settle("Run again", "", "run_again"), settle("Give up", "danger", "give_up"));
}

export function requestCard(remote, request, asked, done, linked = true) {
	const unknown = request.kind === "unknown_effect";
	const { args, why, ...more } = unknown ? request.input : { args: request.input };
	const left = request.deadline && -since(request.deadline);
	return h(`article.request${unknown ? ".unsure" : ""}`, { "data-request-id": request.id },
		h("header", chip(request.kind.replace("_", " "), unknown ? "bad" : "warn"), h("b", request.name), asked && h("span.quiet", "asked ", ago(asked)),
			left && chip(left > 0 ? `expires in ${span(left)}` : "expired", left < 3600 ? "bad" : "warn"), linked && h("a", { href: remote.href }, remote.name)),
		unknown && h("p.warning", "This may have happened. Nobody knows whether it was done: look at the other system before you decide."),
		why && quiet(why), args && Object.keys(args).length && h("div.input", tree(args)), unknown && h("details", h("summary", "what is known of it"), tree(more)), answers(remote, request, done));
}

export function inbox(app) {
	const root = h("div.page", template("inbox"));
	const [list, more] = parts(root, ".requests", ".more");
	more.addEventListener("click", () => load(next));
	let next = null;
	const shown = new Map();
	async function load(page) {
		try {
			const found = await get(`${OWN}/inbox`, { limit: 100, page });
			const ids = new Set(found.data.map((each) => each.request.id));
			if (!page) for (const [id, card] of shown) if (!ids.has(id)) (card.remove(), shown.delete(id));
			for (const each of found.data) {
				if (shown.has(each.request.id)) continue;
				const card = requestCard(Remote.of(each.key), each.request, each.since, () => load());
				shown.set(each.request.id, card);
				list.querySelector(".empty")?.remove();
				list.append(card);
			}
			next = found.next_page;
			more.hidden = !next;
			app.waiting(shown.size, !!next);
			if (!shown.size) clear(list, none("waits"));
		} catch (error) {
			clear(list, failure(error, () => load()));
		}
	}
	load();
	listen(`${OWN}/events/stream`, {}, throttle(300, () => load()), app.connection);
	return { title: "Inbox", root, close() {} };
}
