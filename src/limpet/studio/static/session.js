// One session: the conversation, and the tabs beside it.

import { h, all, one, on, ago, anchor, ask, chip, clear, complain, count, labels, money, parts, state, tabs, template, throttle, toast } from "./dom.js";
import { Remote, listen, session } from "./api.js";
import { sessionLog } from "./log.js";
import { waterfalls } from "./trace.js";
import { timeTravel } from "./travel.js";
import { family, graph } from "./graph.js";
import { requestCard } from "./inbox.js";

export async function sessionPage(app, app_, user, id, query) {
	const remote = new Remote({ app: app_, user, id });
	let head = await remote.get();
	let trace;
	const log = sessionLog(remote, head.version, (seq) => (travel.to(seq, "log"), trace?.mark(seq)));
	const travel = timeTravel(remote, head.version, (seq) => (seq ? log.go(seq) : log.open(), trace?.mark(seq)));
	const about = h("div.about");
	const root = h("div.session", template("session"));
	const [status, mark, menu, waiting, form, text, of, by] = parts(root, ".status", ".verify", ".menu", ".waiting", "form", "textarea", "a", "a + a");
	const go = (seq) => (log.go(seq), travel.to(seq, "log"));
	const side = tabs(one(root, ".tabs"), {
		trace: () => (trace = waterfalls(remote, go)).root,
		state: () => travel.panel,
		graph: () => graph(remote, go),
		family: () => family(remote),
		about: () => about,
	}, query.get("tab"));
	session.strip(root);
	const acts = all(menu, "button");
	for (const it of acts) on(it, "click", () => act(it.name));

	function show() {
		const { usage, budget, failure, parent, phase, ready } = head;
		for (const it of acts) it.hidden = !it.dataset.phases.includes(phase) || (it.name === "requeue" && ready !== "dead");
		const told = [head.status, ready === "dead" && ready, ready === "due" ? ready : head.stop_reason].filter((it, at, all) => it && all.indexOf(it) === at && !/^(idle|terminated|end_turn)$/.test(it));
		clear(status, state(phase), told.map(state), labels(head));
		if (!head.pending) for (const it of all(root, ".is-pending")) it.remove();
		menu.hidden = acts.every((it) => it.hidden);
		form.hidden = /completed|terminated|archived/.test(phase);
		const cards = new Map([...waiting.children].map((it) => [it.dataset.requestId, it]));
		for (const it of head.requests) if (!cards.delete(it.id)) waiting.append(requestCard(remote, it, null, refresh, false));
		for (const it of cards.values()) it.remove();
		const { limit, spent, reserved, remaining } = budget ?? {};
		const bar = (name, shown, max = limit[name]) => max != null && h("div", `${shown(spent[name])} of ${shown(max)} ${name === "cost" ? "" : `${name} `}spent, ${shown(remaining[name])} left`,
			h("meter", { max, low: max * 0.8, high: max * 0.95, optimum: 0, value: spent[name] + reserved[name], "aria-label": `${name} spent` }));
		const facts = [count(usage.turns), `${count(usage.input)} in, ${count(usage.output)} out`, money(usage.cost), budget && [bar("cost", money), bar("tokens", count)],
			ago(head.created_at), ago(head.updated_at), count(head.version), count(head.pending), head.worker, head.due_at && ago(head.due_at),
			Object.entries(head.timers).map(([name, timer]) => h("div", name, " ", ago(timer.at), " ", chip(timer.kind))),
			failure && `${failure.message} (attempt ${failure.attempt})`, parent && anchor(new Remote(parent))];
		clear(about, template("about"));
		all(about, "dd").forEach((it, at) => (facts[at] && clear(it, facts[at]), (it.hidden = it.previousSibling.hidden = !it.firstChild)));
	}

	async function act(name) {
		menu.open = false;
		menu.firstChild.focus(); // gets the focus back
		const done = await ask(`ask-${name}`, { name: id }, ({ reason }) => remote.post(`/${name}`, { [name === "interrupt" ? "note" : "reason"]: reason || undefined }));
		if (done) (toast(`Recorded as ${session.me.id}.`), refresh());
	}

	async function verify() {
		mark.textContent = "Reading…";
		try {
			const report = await remote.get("/verify");
			mark.className = `verify ${report.ok ? "ok" : "wrong"}`;
			clear(mark, report.ok ? `✓ Chain verified, ${count(report.events)} events` : `✗ ${report.findings.map((it) => `${it.where} ${it.seq ?? ""} ${it.problem}`).join("; ").slice(0, 200)}`);
		} catch (error) {
			clear(mark, error.message);
		}
	}

	async function refresh() {
		head = await remote.get().catch(() => head);
		show();
		travel.grow(Math.max(head.version, log.version));
	}

	async function send(event) {
		event.preventDefault();
		const said = text.value.trim();
		if (!said) return;
		text.value = "";
		try {
			await remote.send(said);
		} catch (error) {
			text.value = said;
			complain(error);
		}
	}
	on(text, "keydown", (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && send(event));
	on(form, "submit", send);
	on(menu, "keydown", (event) => event.key === "Escape" && ((menu.open = false), menu.firstChild.focus()));
	on(menu, "focusout", (event) => (menu.open &&= !event.relatedTarget || menu.contains(event.relatedTarget)));
	clear(of, app_).href = `#/fleet?app=${encodeURIComponent(app_)}`;
	clear(by, user).href = `#/fleet?${new URLSearchParams({ app: app_, user })}`;
	clear(one(root, "h1"), id);
	one(root, ".top").after(travel.slider);
	on(mark, "click", verify);
	waiting.before(log.root);
	show();
	const opening = log.open(Number(query.get("seq")) || undefined);
	const soon = throttle(250, refresh);
	const redraw = throttle(500, () => side.shown !== travel.panel && side.shown.renew?.(), 4);
	if (head.phase !== "archived") listen(`${remote.path}/events/stream`, { ...remote.query, after: head.version, partials: true, brief: true }, (event) => {
		log.live(event);
		if (event.partial) return;
		trace?.live(event);
		travel.grow(Math.max(event.seq, travel.version));
		soon();
		redraw();
	}, async (name, error) => {
		if (error) await refresh();
		if (head.phase === "archived") return app.connection();
		app.connection(name, error);
		if (error) complain(error);
	});
	if (head.version <= 5_000) verify();
	await opening;
	return { title: id, log, travel, root };
}
