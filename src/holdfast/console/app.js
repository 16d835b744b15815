// The shell: navigation, the open approvals in the title, the key, and the view that the address names.
import { get, key, MOST_APPROVALS, needsKey, useKey } from "./api.js";
import { followFeed, live, onChange } from "./feed.js";
import { html, render, signal, useEffect, useState } from "./html.js";
import { Waiting } from "./parts/load.js";
import { Agents } from "./views/agents.js";

const POLL_MS = 2000; // while there is no feed
const FETCH_REST_MS = 500; // after the first page is there
const UNSEEN_POLL_MS = 15000; // in a tab that nobody sees, for its title
const address = signal(location.hash.slice(1) || "/");
const approvals = signal([]);
const reachable = signal(true);
addEventListener("hashchange", () => (address.value = location.hash.slice(1) || "/"));

const VIEWS = [
  [/^\/$/, "Agents"],
  [/^\/agents\/([^/]+)$/, "Agent"],
  [/^\/agents\/([^/]+)\/chat(?:\/([^/]+))?$/, "Chat"],
  [/^\/approvals$/, "Approvals"],
  [/^\/runs$/, "Runs"],
  [/^\/runs\/([^/]+)$/, "Run"],
  [/^\/overview$/, "Overview"],
];
// The first page needs a third of the code. The rest is fetched when it is shown, so that no other page waits for it.
const LATER = {
  Agent: () => import("./views/agent.js"),
  Approvals: () => import("./views/approvals.js"),
  Chat: () => import("./views/chat.js"),
  Overview: () => import("./views/overview.js"),
  Run: () => import("./views/run.js"),
  Runs: () => import("./views/runs.js"),
};
const components = signal({ Agents });
const broken = signal({}); // by the name of a view: why it could not be fetched
// Letters that open a view, wherever no text is being written.
const KEYS = { a: "#/", p: "#/approvals", r: "#/runs", o: "#/overview" };

addEventListener("keydown", (event) => {
  const writing = /^(input|textarea|select)$/i.test(event.target.tagName);
  if (!writing && !event.ctrlKey && !event.metaKey && !event.altKey && KEYS[event.key]) location.hash = KEYS[event.key];
});

async function loadView(name) {
  broken.value = { ...broken.value, [name]: null };
  try {
    const module = await LATER[name]();
    components.value = { ...components.value, [name]: module[name] };
  } catch (error) {
    broken.value = { ...broken.value, [name]: error.message };
  }
}

async function lookForApprovals() {
  try {
    approvals.value = await get(`/approvals/?limit=${MOST_APPROVALS}`);
    reachable.value = true;
  } catch (error) {
    reachable.value = error.status !== 0;
  }
}

// Keeps the list of approvals as it is on the server: by the feed, and by looking while there is none.
function watchApprovals() {
  let timer = 0;
  let looking = false;
  let stale = false;
  const look = async () => {
    clearTimeout(timer);
    if (looking) return void (stale = true);
    looking = true;
    stale = false;
    await lookForApprovals();
    looking = false;
    if (stale) look();
    else if (!live.value) timer = setTimeout(look, document.hidden ? UNSEEN_POLL_MS : POLL_MS);
  };
  const forget = onChange(({ type, status }) => {
    if (["resync", "approval"].includes(type) || status === "deleted") look();
  });
  const unsubscribe = live.subscribe((is) => is || look());
  return () => {
    clearTimeout(timer);
    forget();
    unsubscribe();
  };
}

function KeyForm() {
  const [text, setText] = useState("");
  return html`<main class="narrow"><h1>This server has a key</h1>
    <p>It is the value of <code>HOLDFAST_API_KEY</code> where the server runs. It is kept until this tab is closed.</p>
    <form onSubmit=${(event) => { event.preventDefault(); useKey(text.trim()); }}>
      <label>API key<input type="password" autocomplete="current-password" autofocus value=${text} onInput=${(event) => setText(event.target.value)} /></label>
      <button class="primary">Open the console</button>
    </form></main>`;
}

function App() {
  const path = address.value.split("?")[0];
  const [found, name] = VIEWS.map(([pattern, label]) => [path.match(pattern), label]).find(([match]) => match) ?? [];
  const view = components.value[name];
  const waiting = approvals.value.length;
  useEffect(() => {
    const ends = [watchApprovals(), followFeed()];
    return () => ends.forEach((end) => end());
  }, [key.value]);
  useEffect(() => void (name && !view && loadView(name)), [name]);
  useEffect(() => {
    document.title = `${waiting ? `(${waiting}) ` : ""}${name ?? "Not found"} · Holdfast`;
  }, [waiting, name]);
  if (needsKey.value) return html`<${KeyForm} />`;
  const current = (href) => (`#${path}` === href ? "page" : undefined);
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to content</a>
    <nav aria-label="Main">
      <a class="brand" href="#/">Holdfast</a>
      <a href="#/" aria-current=${current("#/")}>Agents</a>
      <a href="#/approvals" aria-current=${current("#/approvals")}>Approvals ${waiting > 0 && html`<b class="badge" data-approvals=${waiting}>${waiting}</b>`}</a>
      <a href="#/runs" aria-current=${current("#/runs")}>Runs</a>
      <a href="#/overview" aria-current=${current("#/overview")}>Overview</a>
    </nav>
    ${!reachable.value && html`<p class="problem banner" role="status">The server cannot be reached. The console tries again every two seconds.</p>`}
    ${view
      ? html`<${view} key=${path} parts=${found.slice(1).map((part) => part && decodeURIComponent(part))} approvals=${approvals} refresh=${lookForApprovals} />`
      : html`<main id="main" tabindex="-1">${name ? html`<${Loading} name=${name} />` : html`<h1>There is no such page</h1><p><a href="#/">All agents</a></p>`}</main>`}`;
}

function Loading({ name }) {
  const problem = broken.value[name];
  if (!problem) return html`<${Waiting} />`;
  return html`<p class="problem" role="alert">This page could not be loaded: ${problem}</p>
    <button onClick=${() => loadView(name)}>Try again</button>`;
}

const place = document.getElementById("app");
place.replaceChildren();
render(html`<${App} />`, place);
addEventListener("load", () => setTimeout(() => Object.keys(LATER).forEach((name) => components.value[name] ?? loadView(name)), FETCH_REST_MS));
