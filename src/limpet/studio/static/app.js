// The shell: sign-in, pages, keys, light and dark.

import { h, all, one, on, ask, clear, failure, part, template, throttle, visible, SAY } from "./dom.js";
import { OWN, call, get, hush, session } from "./api.js";
import { fleet } from "./fleet.js";
import { inbox } from "./inbox.js";
import { sessionPage } from "./session.js";
import { comparePage } from "./compare.js";
import { analytics } from "./analytics.js";

const main = one(document, "main");
const shell = document.documentElement;
let page = null;

const app = {
	waiting(number, more) {
		part("waiting").textContent = number ? number + (more ? "+" : "") : "";
	},
	connection(name = "", error) {
		Object.assign(part("connection"), { className: name, textContent: SAY[`stream:${name}`] ?? "", title: error?.message ?? "" });
	},
};

async function route() {
	if (!session.me) return;
	const [path, given] = location.hash.slice(2).split("?");
	const [name, ...rest] = path.split("/");
	const query = new URLSearchParams(given);
	page?.close?.();
	page = null;
	hush();
	app.connection();
	main.setAttribute("aria-busy", "true");
	const number = (route.number = (route.number ?? 0) + 1);
	let made;
	try {
		const [app_, user, ...ids] = rest.map(decodeURIComponent);
		if (name === "s" && ids.length) made = await sessionPage(app, app_, user, ids.join("/"), query);
		else if (name === "compare" && ids.length === 2) made = await comparePage(app, app_, user, ...ids);
		else if (name === "analytics") made = analytics();
		else made = name === "inbox" ? inbox(app) : fleet(app, query);
	} catch (error) {
		if (error.status === 404 || error instanceof URIError) error.message = SAY.missing;
		made = { title: "Error", root: h("div.page", h("h1", "Session"), failure(error, route), template("lost")) };
	}
	if (number !== route.number) return made.close?.();
	page = made;
	clear(main, made.root).scrollTop = 0;
	main.removeAttribute("aria-busy");
	document.title = `${visible(made.title).slice(0, 80)} · Limpet`;
	for (const it of all(document, "nav.main a")) it.setAttribute("aria-current", it.hash.slice(2) === (name || "fleet") ? "page" : "false");
	made.log?.place();
	main.focus({ preventScroll: true });
	performance.mark("limpet-shown");
}

async function enter() {
	const token = /^#token=(.+)$/.exec(location.hash)?.[1];
	if (token) {
		history.replaceState(null, "", "#/fleet");
		try {
			session.keep((await call("POST", "studio/sign_in", { body: { token } })).key, true);
		} catch (error) {
			return signIn(error.message);
		}
	}
	try {
		session.me = await get(`${OWN}/me`);
	} catch (error) {
		if (error.status === 401) return signIn(session.key ? SAY.refused : "");
		return clear(main, h("div.page", failure(error, enter)));
	}
	clear(part("me"), `${session.me.id} · ${session.me.role}`);
	document.body.classList.add("signed-in");
	for (const it of all(document, ".bar [data-needs]")) it.hidden = !session.may(it.dataset.needs);
	count();
	route();
}

function signIn(wrong) {
	session.keep(null);
	session.me = null;
	page?.close?.();
	page = null;
	document.body.classList.remove("signed-in");
	const form = h("form.sign-in", { onsubmit: (event) => (event.preventDefault(), session.keep(form.key.value.trim(), form.stay.checked), enter()) }, template("sign-in"));
	clear(one(form, ".wrong"), wrong);
	clear(main, form);
	form.key.focus();
}

const count = () => get(`${OWN}/inbox`, { limit: 100 }).then((found) => app.waiting(found.data.length, found.next_page)).catch(() => {});

addEventListener("status", throttle(2_000, count, 30));
addEventListener("signed-out", () => session.me && signIn(SAY.signedOut));
addEventListener("hashchange", route);
on(one(document, ".skip"), "click", (event) => (event.preventDefault(), main.focus()));
on(part("sign-out"), "click", () => signIn(""));
on(part("theme"), "click", () => theme(getComputedStyle(shell).colorScheme === "dark" ? "light" : "dark"));

function theme(name) {
	if (name) shell.dataset.theme = localStorage["limpet-theme"] = name;
}

let before = "";
addEventListener("keydown", (event) => {
	if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
	const { key } = event;
	const gone = before === "g" && { f: "#/fleet", i: "#/inbox", a: "#/analytics" }[key];
	before = key;
	if (gone) location.hash = gone;
	else if (key === "/") (page?.log?.box ?? one(main, "input"))?.focus();
	else if (key === "j" || key === "k") page?.log?.step(key === "j" ? 1 : -1);
	else if (key === "[" || key === "]") page?.travel?.to(page.travel.seq + (key === "]" ? 1 : -1));
	else if (key === "n") page?.travel?.toNow();
	else if (key === "t") part("theme").click();
	else if (key === "?") ask("keys");
	else return;
	event.preventDefault();
});

theme(localStorage["limpet-theme"]);
enter();
