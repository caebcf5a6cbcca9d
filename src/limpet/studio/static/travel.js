// Time travel: a slider over the log, the state at any moment, who changed it, and ways on from there.

import { h, s, ago, ask, clear, count, into, link, none, quiet, template, throttle, toast, when } from "./dom.js";
import { session } from "./api.js";
import { changes, opText, tree } from "./tree.js";

/** A value as a person types it: JSON, or else a text. */
export function parsed(text) {
	try {
		return JSON.parse(text);
	} catch {
		return text;
	}
}

export class Travel {
	constructor(remote, { version, moved }) {
		Object.assign(this, { remote, version, moved, seq: version, now: true, toggled: new Map(), checkpoints: [] });
		const [slider, panel] = template("travel").children;
		Object.assign(this, { slider, panel, range: slider.querySelector("input"), marks: slider.querySelector("svg"), place: slider.querySelector("output"), back: slider.querySelector("button") });
		for (const name of ["changed", "state", "blame", "pinned"]) this[`${name}Part`] = panel.querySelector(`.${name}`);
		this.range.max = this.range.value = version;
		this.range.addEventListener("input", () => this.to(Number(this.range.value), "slider"));
		this.back.addEventListener("click", () => this.toNow());
		for (const each of panel.querySelectorAll("[data-needs]")) {
			each.addEventListener("click", () => this[each.value]());
			if (!session.may(each.dataset.needs)) each.remove();
		}
		this.read = throttle(60, () => this.load());
		this.show();
		this.load();
		this.loadCheckpoints();
	}

	/** The log grew: the slider follows if it is at its end. */
	grow(version) {
		this.version = version;
		this.range.max = version;
		if (this.now) this.set(version, true);
		else this.show();
	}

	set(seq, now) {
		Object.assign(this, { seq, now });
		this.range.value = seq;
		this.show();
		this.read();
	}

	to(wanted, from) {
		const seq = Math.max(1, Math.min(wanted, this.version));
		this.set(seq, seq === this.version && from === "slider");
		if (from !== "log") this.moved(this.now ? null : seq);
	}

	toNow() {
		this.set(this.version, true);
		this.moved(null);
	}

	show() {
		this.slider.classList.toggle("past", !this.now);
		this.back.hidden = this.now;
		this.place.textContent = this.now ? `now, event ${count(this.version)}` : `event ${count(this.seq)} of ${count(this.version)}`;
		this.range.setAttribute("aria-valuetext", this.place.textContent);
		const marks = this.checkpoints.map((each) => s("rect.checkpoint", { x: (1000 * (each.ref.seq - 1)) / Math.max(1, this.version - 1) - 1.5, y: 0, width: 3, height: 8 }));
		this.marks.replaceChildren(...marks);
	}

	load() {
		const seq = this.seq;
		into(this.statePart, async () => {
			const [{ state }, diff] = await Promise.all([
				this.remote.get("/state", this.now ? {} : { at: seq }), seq > 1 ? this.remote.get("/diff", { from: seq - 1, to: seq }) : { changes: [] }]);
			if (seq !== this.seq) return null;
			this.value = state;
			const marks = new Map(diff.changes.map((each) => [JSON.stringify(each.path), each.kind]));
			const names = Object.keys(state).length;
			clear(this.changedPart, seq > 1 ? changes(diff.changes, (path) => this.blame(path)) : quiet("The first event: the state begins here."));
			return names ? tree(state, { pick: (path) => this.blame(path), marks, toggled: this.toggled }) : quiet("The state is empty.");
		});
	}

	async loadCheckpoints() {
		const page = await this.remote.get("/checkpoints", { limit: 100 }).catch(() => ({ data: [] }));
		this.checkpoints = page.data;
		clear(this.pinnedPart, page.data.length ? h("ul.plain", page.data.map((each) => h("li", link(`#${each.ref.number}`, () => this.to(each.ref.seq)),
			` at event ${count(each.ref.seq)}, ${each.trigger}, `, ago(each.at), " ", session.may("write") && link("Restore", () => this.restore(each.ref)))))
			: none("checkpoints"));
		this.show();
	}

	async blame(path) {
		const name = path.map(String).join(".");
		await into(this.blamePart, async () => {
			const page = await this.remote.get("/blame", { path: name });
			const past = page.data.filter((each) => each.event.seq <= this.seq);
			return [h("h3", "Who changed ", h("code", name)), past.length ? h("ol.plain", past.slice(0, 50).map((each) =>
				h("li", link(`#${each.event.seq}`, () => this.to(each.event.seq)), " ", h("b", each.actor), " ", ago(each.event.at), " ",
					h("code", opText(each.op))))) : quiet("Nobody did up to this moment.")];
		});
		this.blamePart.scrollIntoView({ block: "nearest" });
	}

	edit() {
		return this.fork(true);
	}

	async fork(edits) {
		const answer = await ask(edits ? "ask-edit" : "ask-fork", { seq: this.seq, state: JSON.stringify(this.value ?? {}, null, 2) }, ({ state }) => {
			const wanted = Object.entries(JSON.parse(state ?? "{}")).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(this.value[name]));
			return this.remote.post("/fork", { at: this.seq, set: Object.fromEntries(wanted) });
		});
		if (!answer) return;
		toast("The fork is ready.");
		location.hash = this.remote.compared(answer.id);
	}

	async rewind() {
		const answer = await ask("ask-rewind", { seq: this.seq }, () => this.remote.post("/rewind", { to: this.seq }));
		if (!answer) return;
		toast(answer.event ? `Rewound by event ${answer.event.seq}.` : "Nothing was different: nothing was recorded.");
		this.toNow();
	}

	async checkpoint() {
		try {
			const made = await this.remote.post("/checkpoints");
			toast(`Checkpoint #${made.number} is at event ${made.seq}.`);
			this.loadCheckpoints();
		} catch (error) {
			toast(error.message, "bad");
		}
	}

	async restore({ number, seq }) {
		if (await ask("ask-restore", { name: number, seq }, () => this.remote.post(`/checkpoints/${number}/restore`))) this.toNow();
	}

	async bisect() {
		const answer = await ask("ask-bisect", {}, async ({ path, is, value }) => {
			const { event } = await this.remote.post("/bisect", { path, is, value: parsed(value) });
			if (!event) throw new Error("It is true now: there is nothing to find.");
			return event;
		});
		if (!answer) return;
		toast(`Event ${answer.seq}: ${answer.type} by ${answer.actor}, ${when(answer.at)}.`);
		this.to(answer.seq);
	}
}
