// One session: the conversation, beside it the trace, the state at any moment, its graph, its family.

import { h, ago, ask, chip, clear, count, failure, labels, money, parts, state, tabs, template, throttle, toast, visible } from "./dom.js";
import { OWN, Remote, listen, session } from "./api.js";
import { Log } from "./log.js";
import { Trace } from "./trace.js";
import { Travel } from "./travel.js";
import { family, graph } from "./graph.js";
import { requestCard } from "./inbox.js";

// What can be done, the right that it needs, and the phases in which it can; the shell has the words.
const ACTS = [
	["interrupt", "write", "active"], ["suspend", "lifecycle", "active"], ["resume", "lifecycle", "suspended resumed"], ["activate", "lifecycle", "init"],
	["requeue", "write", "active"], ["complete", "lifecycle", "active"], ["terminate", "lifecycle", "init active suspended resumed"], ["archive", "lifecycle", "completed terminated"],
];

export async function sessionPage(app, app_, user, id, query) {
	const remote = new Remote(app_, user, id);
	let head;
	try {
		head = await remote.get();
	} catch (error) {
		error.message = error.status === 404 ? `There is no session ${remote.name}, or your key does not see it. Look for it in the fleet.` : error.message;
		return { title: id, root: h("div.page", h("h1", "Session"), failure(error)), close() {} };
	}
	let trace;
	const log = new Log(remote, { picked: (seq) => (travel.to(seq, "log"), trace?.mark(seq)) });
	const travel = new Travel(remote, { version: head.version, moved: (seq) => (seq ? (log.go(seq), trace?.mark(seq)) : log.open()) });
	const mark = h("button.verify", { onclick: verify, title: "Read the log again and check its hash chain" }, "Verify the chain");
	const about = h("div.about");
	const root = h("div.session", template("session"));
	const [top, status, menu, choices, columns, waiting, form, text, of, by] = parts(root, ".top", ".status", ".menu", ".menu div", ".columns", ".waiting", "form", "textarea", "a", "a + a");
	const side = tabs("Beside the conversation", [
		{ id: "trace", label: "Trace", make: () => (trace = new Trace(remote, { picked: (seq) => (log.go(seq), travel.to(seq, "log")) })).root },
		{ id: "state", label: "State", make: () => travel.panel },
		{ id: "graph", label: "Graph", make: () => graph(remote, (seq) => (log.go(seq), travel.to(seq, "log"))) },
		{ id: "family", label: "Family", make: () => family(remote) },
		{ id: "about", label: "About", make: () => about },
	], query.get("tab") ?? "trace");

	function show() {
		const acts = ACTS.filter(([name, right, phases]) => session.may(right) && phases.split(" ").includes(head.phase) && (name !== "requeue" || head.ready === "dead"));
		clear(status, state(head.phase), head.status !== "idle" && head.status !== "terminated" && state(head.status), head.ready === "dead" && state("dead"), head.stop_reason && head.stop_reason !== "end_turn" && state(head.stop_reason),
			labels(head), mark);
		menu.hidden = !acts.length;
		if (choices.children.length !== acts.length || choices.firstChild?.name !== acts[0]?.[0]) clear(choices, acts.map(([name]) => h("button", { name, onclick: () => act(name) }, name[0].toUpperCase() + name.slice(1))));
		const kept = new Set(head.requests.map((each) => each.id));
		for (const each of [...waiting.children]) if (!kept.has(each.dataset.requestId)) each.remove();
		for (const each of head.requests) if (![...waiting.children].some((card) => card.dataset.requestId === each.id)) waiting.append(requestCard(remote, each, null, refresh, false));
		const { usage, budget } = head;
		const bar = (name, shown) => budget?.limit[name] != null && h("div.budget", h("span", `${shown(budget.spent[name])} of ${shown(budget.limit[name])} ${name === "cost" ? "" : `${name} `}spent, ${shown(budget.remaining[name])} left`),
			h("meter", { min: 0, max: budget.limit[name], value: budget.spent[name] + budget.reserved[name], "aria-label": `${name} spent` }));
		const rows = [["Turns", count(usage.turns)], ["Tokens", `${count(usage.input)} in, ${count(usage.output)} out`], ["Cost", money(usage.cost)], ["Budget", budget ? [bar("cost", money), bar("tokens", count)] : "no limit"],
			["Created", ago(head.created_at)], ["Updated", ago(head.updated_at)], ["Events", count(head.version)], ["Pending inputs", count(head.pending)],
			["Worker", head.worker ?? "none"], ["Wakes", head.due_at ? ago(head.due_at) : "when input comes"],
			["Timers", Object.entries(head.timers).map(([name, timer]) => h("div", name, " ", ago(timer.at), " ", chip(timer.kind)))],
			["Failure", head.failure && `${head.failure.message} (attempt ${head.failure.attempt})`], ["Parent", head.parent && h("a", { href: Remote.of(head.parent).href }, Remote.of(head.parent).name)]];
		clear(about, h("dl", rows.filter(([, value]) => value && value.length !== 0).map(([name, value]) => [h("dt", name), h("dd", value)])));
	}

	async function act(name) {
		menu.open = false;
		const done = await ask(`ask-${name}`, { name: id }, ({ reason }) => remote.post(`/${name}`, { [name === "interrupt" ? "note" : "reason"]: reason || undefined }));
		if (done) (toast(`${name}: recorded as ${session.me.id}.`), refresh());
	}

	async function verify() {
		mark.textContent = "Reading…";
		try {
			const report = await remote.get("/verify");
			mark.className = `verify ${report.ok ? "ok" : "wrong"}`;
			mark.textContent = report.ok ? `✓ Chain verified, ${count(report.events)} events` : `✗ ${report.findings.map((each) => visible(each.problem)).join("; ").slice(0, 200)}`;
		} catch (error) {
			mark.textContent = visible(error.message);
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
			toast(error.message, "bad");
		}
	}
	text.addEventListener("keydown", (event) => event.key === "Enter" && !event.shiftKey && send(event));
	form.addEventListener("submit", send);
	if (!session.may("write") || !["init", "active", "suspended", "resumed"].includes(head.phase)) form.remove();
	clear(of, app_).href = `#/fleet?app=${encodeURIComponent(app_)}`;
	clear(by, user).href = `#/fleet?${new URLSearchParams({ app: app_, user })}`;
	clear(root.querySelector("h1"), id);
	top.after(travel.slider);
	waiting.before(log.root);
	columns.append(side.root);
	show();
	log.version = head.version;
	const opening = log.open(Number(query.get("seq")) || undefined);
	const soon = throttle(250, refresh);
	listen(`${OWN}/${remote.path}/events/stream`, { ...remote.query, after: head.version, partials: true, brief: true }, (event) => {
		log.live(event);
		if (event.partial) return;
		trace?.live(event);
		travel.grow(Math.max(event.seq, travel.version));
		soon();
	}, app.connection);
	if (head.version <= 5_000) verify();
	await opening;
	return { title: id, log, travel, root, close: () => trace?.close() };
}
