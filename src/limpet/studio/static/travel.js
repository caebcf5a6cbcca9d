// Time travel: a slider over the log, the state at its moment, and ways on from there.

import { h, all, one, on, s, ago, ask, clear, complain, count, into, link, near, none, parts, quiet, refocused, template, throttle, toast, when, SAY } from "./dom.js";
import { session } from "./api.js";
import { changes, opText, tree } from "./tree.js";

/** What a person types: JSON, or else a text. */
export function parsed(text) {
	try {
		return JSON.parse(text);
	} catch {
		return text;
	}
}

/** A step of a path, as the API reads it: .name, [0] or ["a name with dots"]. */
const step = (name, at) => (Number.isInteger(name) ? `[${name}]` : /[.[\]'"]|^$/.test(name) ? `[${JSON.stringify(name)}]` : at ? `.${name}` : name);

export function timeTravel(remote, version, moved) {
	const [slider, panel] = template("travel").children;
	const [range, ticks, place, back] = parts(slider, "input", "svg", "output", "button");
	const [changed, stated, blamed, pinned] = parts(panel, ".changed", ".state", ".blame", ".pinned");
	const toggled = new Map();
	const acts = { fork: () => fork(false), edit: () => fork(true), rewind, checkpoint, bisect };
	const read = throttle(60, load);
	let [moment, now, pins, fields, drawn] = [version, true, []];
	panel.renew = load;
	range.max = version; // it bounds the value
	range.value = version;
	on(range, "input", () => to(Number(range.value), "slider"));
	on(back, "click", toNow);
	session.strip(panel);
	for (const it of all(panel, "[data-needs]")) on(it, "click", acts[it.value]);
	show();
	loadCheckpoints();

	/** The slider follows the log if it is at its end. */
	function grow(newest) {
		range.max = version = newest;
		if (now) set(version, true);
		else show();
	}

	function set(seq, newest) {
		[moment, now] = [seq, newest];
		range.value = seq;
		show();
		read();
	}

	function to(wanted, from) {
		const seq = Math.max(1, Math.min(wanted, version));
		set(seq, seq === version && from === "slider");
		if (from !== "log") moved(now ? null : seq);
	}

	function toNow() {
		set(version, true);
		moved(null);
	}

	function show() {
		slider.classList.toggle("past", !now);
		back.hidden = now;
		place.textContent = now ? `now, event ${count(version)}` : `event ${count(moment)} of ${count(version)}`;
		range.setAttribute("aria-valuetext", place.textContent);
		ticks.replaceChildren(...pins.map((it) => s("rect.checkpoint", { x: (1000 * (it.ref.seq - 1)) / Math.max(1, version - 1) - 1.5, y: 0, width: 3, height: 8 })));
	}

	/** The same state stays, with what is open in it. */
	async function load() {
		if (!panel.parentElement) return; // its tab reads it
		const [seq, live] = [moment, now];
		await refocused(stated, () => into(stated, async () => {
			const [{ state }, diff] = await Promise.all([
				remote.get("/state", live ? {} : { at: seq }), live || seq < 2 ? { changes: [] } : remote.get("/diff", { from: seq - 1, to: seq })]);
			if (seq !== moment || live !== now) return null;
			changed.parentNode.hidden = live;
			if (drawn === (drawn = JSON.stringify([state, diff])) && !one(stated, ".failure")) return null;
			fields = state;
			const marks = new Map(diff.changes.map((it) => [JSON.stringify(it.path), it.kind]));
			clear(changed, seq > 1 ? changes(diff.changes, blame) : quiet(SAY.first));
			return Object.keys(state).length ? tree(state, { pick: blame, marks, toggled }) : quiet(SAY.empty);
		}));
	}

	async function loadCheckpoints() {
		pins = (await remote.get("/checkpoints", { limit: 100 }).catch(() => ({ data: [] }))).data;
		clear(pinned, pins.length ? h("ul.plain", pins.map(({ ref, trigger, at }) => h("li", link(`#${ref.number}`, () => to(ref.seq)),
			` at event ${count(ref.seq)}, ${trigger}, `, ago(at), " ", session.may("write") && link("Restore", () => restore(ref)))))
			: none("checkpoints"));
		show();
	}

	async function blame(path) {
		const name = path.map(step).join("");
		await into(blamed, async () => {
			const page = await remote.get("/blame", { path: name });
			const past = page.data.filter((it) => it.event.seq <= moment);
			return [h("h2", "Who changed ", h("code", name)), past.length ? h("ol.plain", past.slice(0, 50).map(({ event, actor, op }) =>
				h("li", link(`#${event.seq}`, () => to(event.seq)), " ", h("b", actor), " ", ago(event.at), " ", h("code", opText(op))))) : quiet(SAY.nobody)];
		});
		near(blamed);
	}

	async function fork(edits) {
		const answer = await ask(edits ? "ask-edit" : "ask-fork", { seq: moment, state: JSON.stringify(fields ?? {}, null, 2) }, ({ state }) => {
			const given = JSON.parse(state ?? "{}");
			if (given?.constructor !== Object) throw new Error(SAY.fields);
			const wanted = Object.entries(given).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(fields[name]));
			return remote.post("/fork", { at: moment, set: Object.fromEntries(wanted) });
		});
		if (!answer) return;
		toast("The fork is ready.");
		location.hash = remote.compared(answer.id);
	}

	async function rewind() {
		const answer = await ask("ask-rewind", { seq: moment }, () => remote.post("/rewind", { to: moment }));
		if (!answer) return;
		toast(answer.event ? `Rewound by event ${answer.event.seq}.` : SAY.same);
		toNow();
	}

	async function checkpoint() {
		try {
			const made = await remote.post("/checkpoints");
			toast(`Checkpoint #${made.number} is at event ${made.seq}.`);
			loadCheckpoints();
		} catch (error) {
			complain(error);
		}
	}

	async function restore({ number, seq }) {
		if (await ask("ask-restore", { name: number, seq }, () => remote.post(`/checkpoints/${number}/restore`))) toNow();
	}

	async function bisect() {
		const answer = await ask("ask-bisect", {}, async ({ path, is, value }) => {
			const { event } = await remote.post("/bisect", { path, is, value: parsed(value) });
			if (!(event?.seq > 1)) throw new Error(event ? SAY.untrue : SAY.holds);
			return event;
		});
		if (!answer) return;
		toast(`Event ${answer.seq}: ${answer.type} by ${answer.actor}, ${when(answer.at)}.`);
		to(answer.seq);
	}

	return { slider, panel, grow, to, toNow, get seq() { return moment; }, get version() { return version; } };
}
