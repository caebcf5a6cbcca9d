// Time travel: a slider over the log, the state at any moment, what changed, who changed it, and
// what one can do from there: fork, edit, rewind, compare, bisect.

import { h, s, ago, ask, clear, count, debounce, failure, toast, visible, when } from "./dom.js";
import { Remote, session } from "./api.js";
import { brief, changes, tree } from "./tree.js";

export const CONDITIONS = [["equal", "is"], ["not_equal", "is not"], ["less", "<"], ["less_or_equal", "≤"], ["greater", ">"], ["greater_or_equal", "≥"],
  ["contains", "contains"], ["present", "is set"], ["absent", "is not set"]];

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
    Object.assign(this, { remote, version, moved, seq: version, now: true, opened: new Set(), checkpoints: [] });
    this.range = h("input", { type: "range", min: 1, max: version, value: version, "aria-label": "Moment in the history", oninput: () => this.to(Number(this.range.value), "slider") });
    this.marks = s("svg.marks", { viewBox: "0 0 1000 8", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.place = h("output.place");
    this.back = h("button", { hidden: true, onclick: () => this.toNow() }, "Back to now");
    this.slider = h("div.travel", { role: "group", "aria-label": "Time travel" }, h("span.label", "History"), h("div.track", this.marks, this.range), this.place, this.back);
    this.state = h("div.state");
    this.changed = h("div");
    this.blamed = h("div.blame", { "aria-live": "polite" });
    this.listed = h("div");
    const write = session.may("write");
    this.panel = h("div.moment", h("div.buttons", session.may("create") && h("button", { onclick: () => this.fork() }, "Fork here"),
      session.may("create") && h("button", { onclick: () => this.edit() }, "Edit and fork"),
      write && h("button", { onclick: () => this.rewind() }, "Rewind to here"), write && h("button", { onclick: () => this.checkpoint() }, "Checkpoint"),
      h("button", { onclick: () => this.bisect() }, "Bisect")),
    h("h3", "Changed by this event"), this.changed, h("h3", "State"), this.state, this.blamed, h("h3", "Checkpoints"), this.listed);
    this.read = debounce(60, () => this.load());
    this.show();
    this.load();
    this.loadCheckpoints();
  }

  /** The log grew: the slider follows if it is at its end. */
  grow(version) {
    this.version = version;
    this.range.max = version;
    if (this.now) {
      this.seq = version;
      this.range.value = version;
      this.read();
    }
    this.show();
  }

  to(seq, from) {
    this.seq = Math.max(1, Math.min(seq, this.version));
    this.now = this.seq === this.version && from === "slider";
    this.range.value = this.seq;
    this.show();
    this.read();
    if (from !== "log") this.moved(this.now ? null : this.seq);
  }

  toNow() {
    this.now = true;
    this.seq = this.version;
    this.range.value = this.version;
    this.show();
    this.read();
    this.moved(null);
  }

  show() {
    this.slider.classList.toggle("past", !this.now);
    this.back.hidden = this.now;
    this.place.textContent = this.now ? `now, event ${count(this.version)}` : `event ${count(this.seq)} of ${count(this.version)}`;
    this.range.setAttribute("aria-valuetext", this.place.textContent);
    const marks = this.checkpoints.map((each) => s("rect.checkpoint", { x: 1000 * Math.max(0, (each.ref.seq - 1) / Math.max(1, this.version - 1)) - 1.5, y: 0, width: 3, height: 8 }));
    this.marks.replaceChildren(...marks);
  }

  async load() {
    const seq = this.seq;
    try {
      const [{ state }, diff] = await Promise.all([
        this.remote.get("/state", this.now ? {} : { at: seq }), seq > 1 ? this.remote.get("/diff", { from: seq - 1, to: seq }) : { changes: [] }]);
      if (seq !== this.seq) return;
      this.value = state;
      const marks = new Map(diff.changes.map((each) => [JSON.stringify(each.path), each.kind]));
      const names = Object.keys(state).length;
      if (this.first === undefined) this.first = names;
      clear(this.state, names ? tree(state, { pick: (path) => this.blame(path), marks, open: this.opened.size ? this.opened : undefined }) : h("p.quiet", "The state is empty."));
      clear(this.changed, seq > 1 ? changes(diff.changes, (path) => this.blame(path)) : h("p.quiet", "The first event: the state begins here."));
    } catch (error) {
      clear(this.state, failure(error, () => this.load()));
    }
  }

  async loadCheckpoints() {
    const page = await this.remote.get("/checkpoints", { limit: 100 }).catch(() => ({ data: [] }));
    this.checkpoints = page.data;
    clear(this.listed, page.data.length ? h("ul.plain", page.data.map((each) => h("li", h("button.link", { onclick: () => this.to(each.ref.seq) }, `#${each.ref.number}`),
      ` at event ${count(each.ref.seq)}, ${each.trigger}, `, ago(each.at), " ", session.may("write") && h("button.link", { onclick: () => this.restore(each.ref) }, "Restore"))))
      : h("p.quiet", "There are none. A checkpoint pins a state that is verified before it is restored."));
    this.show();
  }

  async blame(path) {
    const name = path.map(String).join(".");
    try {
      const page = await this.remote.get("/blame", { path: name });
      const past = page.data.filter((each) => each.event.seq <= this.seq);
      clear(this.blamed, h("h3", "Who changed ", h("code", visible(name))), past.length ? h("ol.plain", past.slice(0, 50).map((each) =>
        h("li", h("button.link", { onclick: () => this.to(each.event.seq) }, `#${each.event.seq}`), " ", h("b", visible(each.actor)), " ", ago(each.event.at), " ",
          h("code", brief(each.op, 80))))) : h("p.quiet", "Nobody did up to this moment."));
    } catch (error) {
      clear(this.blamed, h("p.warning", visible(error.message)));
    }
    this.blamed.scrollIntoView({ block: "nearest" });
  }

  async fork() {
    const answer = await ask({ title: `Fork at event ${count(this.seq)}`, yes: "Fork",
      text: "A new session goes on from this moment. This one stays as it is; leases, timers and pending inputs begin empty.",
      act: () => this.remote.post("/fork", { at: this.seq }) });
    if (answer) this.forked(answer);
  }

  async edit() {
    const answer = await ask({ title: `Edit the state at event ${count(this.seq)}, and fork`, yes: "Fork with this state",
      text: "The fork begins with these fields. What you leave out keeps its value; null stays null.",
      fields: [{ name: "state", label: "Fields of the state, as JSON", lines: 14, value: JSON.stringify(this.value ?? {}, null, 2) }],
      act: ({ state }) => {
        const wanted = JSON.parse(state);
        const set = Object.fromEntries(Object.entries(wanted).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(this.value[name])));
        return this.remote.post("/fork", { at: this.seq, set });
      } });
    if (answer) this.forked(answer);
  }

  forked(made) {
    const remote = new Remote(this.remote.app, this.remote.user, made.session?.id ?? made.id);
    toast("The fork is ready.");
    location.hash = `#/compare/${[this.remote.app, this.remote.user, this.remote.id, remote.id].map(encodeURIComponent).join("/")}`;
  }

  async rewind() {
    const answer = await ask({ title: `Rewind to event ${count(this.seq)}`, yes: "Rewind", danger: true,
      text: "State and conversation become what they were then, by one new event. Nothing is deleted, and a rewind can be rewound.",
      act: () => this.remote.post("/rewind", { to: this.seq }) });
    if (answer) {
      toast(answer.event ? `Rewound by event ${answer.event.seq}.` : "Nothing was different: nothing was recorded.");
      this.toNow();
    }
  }

  async checkpoint() {
    try {
      const made = await this.remote.post("/checkpoints", {});
      toast(`Checkpoint #${made.number} is at event ${made.seq}.`);
      this.loadCheckpoints();
    } catch (error) {
      toast(error.message, "bad");
    }
  }

  async restore(ref) {
    const answer = await ask({ title: `Restore checkpoint #${ref.number}`, yes: "Restore", danger: true,
      text: `It is verified against the log, then the session goes back to event ${ref.seq}, by one new event.`,
      act: () => this.remote.post(`/checkpoints/${ref.number}/restore`, {}) });
    if (answer) this.toNow();
  }

  async bisect() {
    const answer = await ask({ title: "Bisect", yes: "Find it", text: "Find the event after which a condition on the state stopped being true.",
      fields: [{ name: "path", label: "Field", hint: "For example plan.steps.0", required: true }, { name: "is", label: "Condition that held once", options: CONDITIONS, value: "equal" },
        { name: "value", label: "Value", hint: "JSON, or a text" }],
      act: async ({ path, is, value }) => {
        const { event } = await this.remote.post("/bisect", { path, is, value: parsed(value) });
        if (!event) throw new Error("It is true now: there is nothing to find.");
        return event;
      } });
    if (!answer) return;
    toast(`Event ${answer.seq}: ${answer.type} by ${answer.actor}, ${when(answer.at)}.`);
    this.to(answer.seq);
  }
}
