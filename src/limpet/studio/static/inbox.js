// What waits for a person, the oldest first, and the answers to it.

import { h, ago, ask, chip, clear, empty, failure, since, span, throttle, toast, visible } from "./dom.js";
import { OWN, Remote, get, listen, session } from "./api.js";
import { parsed } from "./travel.js";
import { tree } from "./tree.js";

const KINDS = { approval: "approval", question: "question", unknown_effect: "unknown effect", mismatch: "mismatch" };
const NOTE = { name: "note", label: "Note", lines: 2, hint: "It is recorded with your answer." };
const VALUE = { name: "output", label: "Answer", lines: 4, hint: "JSON, or a text", required: true };

/** The buttons that answer a request, for those who may. */
export function answers(remote, request, done) {
  if (!session.may("write")) return h("p.quiet", "Your key lets you look, not answer.");
  const act = (label, kind, dialog, part, body) => h(`button${kind ? `.${kind}` : ""}`, {
    async onclick() {
      const answer = await ask({ yes: label, danger: kind === "danger", ...dialog,
        act: async (given) => (await remote.post(part, { request_id: request.id, ...body(given) })) || {} });
      if (!answer) return;
      toast(`Recorded as ${session.me.id}.`);
      done?.();
    },
  }, label);
  const name = visible(request.name);
  const noted = (given) => ({ note: given.note || undefined });
  if (request.kind === "approval")
    return h("div.buttons", act("Allow", "primary", { title: `Allow ${name}?`, fields: [NOTE] }, "/confirm", (given) => ({ allow: true, ...noted(given) })),
      act("Deny", "danger", { title: `Deny ${name}?`, fields: [NOTE] }, "/confirm", (given) => ({ allow: false, ...noted(given) })));
  if (request.kind === "question") return h("div.buttons", act("Answer", "primary", { title: name, fields: [VALUE] }, "/answer", (given) => ({ output: parsed(given.output) })));
  const effect = request.kind === "unknown_effect";
  return h("div.buttons",
    effect && act("It happened", "primary", { title: "It happened", text: "Its result is recorded; it is not done again.", fields: [{ ...VALUE, label: "Its result" }, NOTE] },
      "/resolve", (given) => ({ decision: "happened", output: parsed(given.output), ...noted(given) })),
    act("Run again", "", { title: "Run it again?", text: effect ? "It is done again under the same idempotency key: a service that honours the key does it once." : "The turn runs again, with every check on.", fields: [NOTE] },
      "/resolve", (given) => ({ decision: "run_again", ...noted(given) })),
    act("Give up", "danger", { title: "Give up?", text: effect ? "The turn learns that the effect failed." : "The turn ends, and its inputs count as processed.", fields: [NOTE] },
      "/resolve", (given) => ({ decision: "give_up", ...noted(given) })));
}

export function requestCard(remote, request, asked, done, linked = true) {
  const unknown = request.kind === "unknown_effect";
  const { args, input, why, ...more } = unknown ? request.input : { input: request.input };
  const left = request.deadline && -since(request.deadline);
  return h(`article.request${unknown ? ".unsure" : ""}`, { "data-request-id": request.id },
    h("header", chip(KINDS[request.kind] ?? request.kind, unknown ? "bad" : "warn"), h("b", visible(request.name)), asked && h("span.quiet", "asked ", ago(asked)),
      left && chip(left > 0 ? `expires in ${span(left)}` : "expired", left < 3600 ? "bad" : "warn"), linked && h("a", { href: remote.href }, visible(remote.name))),
    unknown && h("p.warning", "This may have happened. Nobody knows whether it was done: look at the other system before you decide."),
    why && h("p.quiet", visible(why)), h("div.input", tree(unknown ? { ...(args ? { args } : {}), ...more } : input ?? null)), answers(remote, request, done));
}

export function inbox(app) {
  const list = h("div.requests", { "aria-live": "polite" });
  const more = h("button", { hidden: true, onclick: () => load(next) }, "Show more");
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
      app.waiting(shown.size, Boolean(next));
      if (!shown.size) clear(list, empty("Nothing waits for you", "Requests of agents appear here by themselves, the oldest first."));
    } catch (error) {
      clear(list, failure(error, () => load()));
    }
  }
  load();
  listen(`${OWN}/events/stream`, {}, throttle(300, () => load()), app.connection);
  return { title: "Inbox", root: h("div.page", h("h1", "Inbox"), h("p.lead", "What waits for a person, the oldest first."), list, more), close() {} };
}
