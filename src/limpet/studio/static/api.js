// The public HTTP API: requests with a key, and one stream at a time.

import { SAY } from "./dom.js";

const KEY = "limpet-key";
const base = new URL("..", import.meta.url).pathname; // a proxy may put a path before it

export const session = {
	key: sessionStorage[KEY] ?? localStorage[KEY],
	me: null,
	keep(key, forever) {
		this.key = key;
		for (const it of [sessionStorage, localStorage]) it.removeItem(KEY);
		if (key) (forever ? localStorage : sessionStorage)[KEY] = key;
	},
	may(action) {
		return this.me?.actions.includes(action);
	},
	/** Take away what the key does not allow. */
	strip(root) {
		for (const it of root.querySelectorAll("[data-needs]")) if (!this.may(it.dataset.needs)) it.remove();
	},
};

const apiError = (status, message) => Object.assign(new Error(message), { status, title: SAY[`status:${status}`] });

function request(method, path, { query = {}, body, signal, last } = {}) {
	const url = new URL(base + path, location.href);
	for (const [name, value] of Object.entries(query)) {
		const many = Array.isArray(value) ? "[]" : "";
		for (const it of [value].flat()) if (it != null && it !== "") url.searchParams.append(name + many, it);
	}
	const headers = {};
	if (session.key) headers.authorization = `Bearer ${session.key}`;
	if (last) headers["last-event-id"] = last;
	if (body) headers["content-type"] = "application/json";
	return fetch(url, { method, headers, signal, cache: "no-store", body: JSON.stringify(body) });
}

async function refused(answer) {
	const { error } = await answer.json().catch(() => ({}));
	return apiError(answer.status, error?.message ?? `The server answered ${answer.status}.`);
}

export async function call(method, path, options) {
	let answer;
	try {
		answer = await request(method, path, options);
	} catch {
		throw apiError(0, SAY.unreachable);
	}
	if (answer.status === 401) dispatchEvent(new Event("signed-out"));
	if (!answer.ok) throw await refused(answer);
	return answer.json();
}

export const get = (path, query) => call("GET", path, { query });
export const OWN = "limpet/v1";

const address = (...names) => `#/${names.map(encodeURIComponent).join("/")}`;

export class Remote {
	constructor({ app, user, id }) {
		Object.assign(this, { app, user, id, wire: wireId(id), query: { app, user } });
		this.path = `sessions/${this.wire}`;
		this.name = `${app}/${user}/${id}`;
		this.href = address("s", app, user, id);
	}
	compared(id) {
		return address("compare", this.app, this.user, this.id, id);
	}
	get(part = "", query = {}) {
		return get(`${OWN}/${this.path}${part}`, { ...this.query, ...query });
	}
	post(part, body = {}) {
		return call("POST", `${OWN}/${this.path}${part}`, { query: this.query, body });
	}
	send(text) {
		const event = { type: "user.message", content: [{ type: "text", text }] };
		return call("POST", `v1/${this.path}/events`, { query: this.query, body: { events: [event] } });
	}
}

function wireId(id) {
	if (/^sesn_[0-9A-Za-z_-]+$/.test(id)) return id;
	const raw = String.fromCharCode(...new TextEncoder().encode(id));
	return `sesn_.${btoa(raw).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`;
}

const turned = (run) => document.addEventListener("visibilitychange", run, { once: true });
let open;

export const hush = () => open?.abort();

/** Listen to one stream in the place of the last: `hear(form)` each frame, `state(name)` when the
 * connection changes. It comes back by itself, after the last frame that was heard. */
export function listen(path, query, hear, state) {
	hush();
	const ending = new AbortController();
	open = ending;
	let last;
	(async () => {
		for (let pause = 300; !ending.signal.aborted; pause = Math.min(pause * 2, 10_000)) {
			// A browser has six connections to a server: a page that nobody looks at takes none.
			if (document.hidden) await new Promise(turned);
			const hiding = new AbortController();
			turned(() => hiding.abort());
			try {
				const answer = await request("GET", `${OWN}/${path}`, { query: last ? { ...query, after: undefined } : query, signal: AbortSignal.any([ending.signal, hiding.signal]), last });
				if (answer.status === 401) return dispatchEvent(new Event("signed-out"));
				if (!answer.ok) throw await refused(answer);
				state("live");
				pause = 300;
				for await (const frame of frames(answer.body)) {
					if (frame.id) last = frame.id;
					if (frame.event === "ping" || !frame.data) continue;
					if (frame.event === "error") throw new Error(frame.data);
					hear(JSON.parse(frame.data));
					if (frame.data.includes('"session.status')) dispatchEvent(new Event("status"));
				}
			} catch (error) {
				if (ending.signal.aborted) return;
				if (error.status >= 400 && error.status < 500) return state("refused", error);
			}
			state("waiting");
			await new Promise((done) => setTimeout(done, pause));
		}
	})();
}

async function* frames(body) {
	const reader = body.pipeThrough(new TextDecoderStream()).getReader();
	let text = "";
	for (;;) {
		const { done, value } = await reader.read();
		if (done) return;
		text += value;
		let end;
		while ((end = text.indexOf("\n\n")) >= 0) {
			const frame = { data: "" };
			for (const [, name, value] of text.slice(0, end).matchAll(/^(\w+): ?([^\n]*)/gm)) frame[name] = value;
			text = text.slice(end + 2);
			yield frame;
		}
	}
}
