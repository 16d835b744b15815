// All agents, and the first steps where there are none.
import { get, post, query } from "../api.js";
import { ago } from "../formats.js";
import { html, useState } from "../html.js";
import { Problem, useLoaded, Waiting } from "../parts/load.js";
import { visible } from "../parts/text.js";

const PAGE = 50;
const REASONS = { end_turn: "answered", requires_approval: "asks for approval", cancelled: "cancelled", max_steps: "reached its step limit", tool_rule: "ended by a rule" };
const DEMO_TOOL = `def send_invoice(customer: str, amount: int) -> str:
    """Send an invoice to a customer.

    Args:
        customer: Who is to pay.
        amount: How much, in euros.
    """
    return f"An invoice over {amount} euros was sent to {customer}."
`;

// An agent with a tool that needs approval: everything that the console is about can be tried with it.
async function createDemo() {
  const [known] = await get(`/tools/${query({ name: "send_invoice" })}`);
  const tool = known ?? (await post("/tools/", { source_code: DEMO_TOOL, default_requires_approval: true }));
  const agent = await post("/agents/", {
    name: "demo",
    model: "holdfast/offline",
    tool_ids: [tool.id],
    memory_blocks: [{ label: "human", value: "The user tries Holdfast for the first time." }],
  });
  location.hash = `#/agents/${agent.id}/chat`;
}

function FirstRun({ fail }) {
  const [busy, setBusy] = useState(false);
  const start = async () => {
    setBusy(true);
    try {
      await createDemo();
    } catch (error) {
      fail(error);
      setBusy(false);
    }
  };
  return html`<section class="first-run">
    <h2>Try it in three clicks</h2>
    <ol>
      <li><button class="primary" disabled=${busy} onClick=${start}>Create a demo agent</button> It uses the built-in offline model, so it needs no key and no network.</li>
      <li>Click the first message that is suggested. The agent asks to call a tool, and waits for you.</li>
      <li>Approve the call, deny it, or stop the run.</li>
    </ol>
    <p class="note">Connect real models with <code>OPENAI_API_KEY</code>, <code>ANTHROPIC_API_KEY</code> or <code>OLLAMA_BASE_URL</code> when the server starts.
      Programs use this same server through <code>letta-client</code>: see <a href="docs">the API</a>.</p>
  </section>`;
}

export function Agents() {
  const [text, setText] = useState("");
  const [pages, setPages] = useState(1);
  const [failure, setFailure] = useState(null);
  const [name, setName] = useState("");
  const [notes, setNotes] = useState(null);
  const { data, error, again } = useLoaded(
    (abort) => get(`/agents/${query({ limit: pages * PAGE, query_text: text, order: "desc", include: "agent.tools" })}`, abort), [text, pages], 5000, ({ type, status }) => type === "agent" || status === "completed");
  const create = async (event) => {
    event.preventDefault();
    try {
      const agent = await post("/agents/", { name: name || undefined, memory_blocks: [{ label: "human", value: "" }, { label: "persona", value: "" }] });
      location.hash = `#/agents/${agent.id}`;
    } catch (problem) {
      setFailure(problem);
    }
  };
  const importFiles = async (files) => {
    try {
      const told = [];
      for (const file of files) {
        const form = new FormData();
        form.append("file", file);
        const made = await post("/agents/import", form);
        told.push(`${file.name}: ${made.agent_ids.length} imported`, ...(made.repairs ?? []), ...(made.warnings ?? []));
      }
      setNotes(told.map((note) => (typeof note === "string" ? note : JSON.stringify(note))));
      setFailure(null);
    } catch (problem) {
      setFailure(problem);
    }
    again();
  };
  const dropped = (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) importFiles(event.dataTransfer.files);
  };
  return html`<main id="main" tabindex="-1" onDragOver=${(event) => event.preventDefault()} onDrop=${dropped}>
    <header class="row page-head"><h1>Agents</h1><span class="grow"></span>
      ${(data?.length > 0 || text) && html`<input type="search" aria-label="Search agents" placeholder="Search by name" value=${text} onInput=${(event) => setText(event.target.value)} />`}
      <form class="row" onSubmit=${create}><input aria-label="Name of a new agent" placeholder="Name of a new agent" value=${name} onInput=${(event) => setName(event.target.value)} /><button>Create</button></form>
      <label class="button">Import, or drop an agent file<input type="file" accept=".af,.json" multiple class="unseen" onChange=${(event) => importFiles(event.target.files)} /></label>
    </header>
    ${notes && html`<ul class="note" role="status">${notes.map((note) => html`<li>${note}</li>`)}</ul>`}
    <${Problem} error=${failure ?? error} />
    ${!data && !error && html`<${Waiting} />`}
    ${data?.length === 0 && (text ? html`<p class="empty">No agent's name holds “${text}”.</p>` : html`<${FirstRun} fail=${setFailure} />`)}
    ${data?.length > 0 && html`<table><thead><tr><th>Name</th><th class="secondary">Model</th><th class="number secondary">Tools</th><th>Last run</th><th></th></tr></thead>
      <tbody>${data.map((agent) => html`<tr key=${agent.id}>
        <td><a class="strong" href=${`#/agents/${agent.id}/chat`}>${visible(agent.name)}</a>${agent.description && html`<br /><span class="note">${visible(agent.description)}</span>`}</td>
        <td class="note secondary">${agent.model}</td><td class="number secondary">${agent.tools?.length ?? 0}</td>
        <td>${agent.last_run_completion ? html`${REASONS[agent.last_stop_reason] ?? agent.last_stop_reason ?? ""} <span class="note">${ago(agent.last_run_completion)}</span>` : html`<span class="note">none yet</span>`}</td>
        <td class="number"><a href=${`#/agents/${agent.id}`} title="Memory, tools and settings">Details</a></td></tr>`)}</tbody></table>
      ${data.length === pages * PAGE && html`<p><button onClick=${() => setPages(pages + 1)}>Show more</button></p>`}`}
  </main>`;
}
