// All runs, newest first; those at work are shown as they are now.
import { get, MOST_APPROVALS, query } from "../api.js";
import { ago, duration, shortId } from "../formats.js";
import { html, useState } from "../html.js";
import { Problem, useLoaded, Waiting } from "../parts/load.js";

const PAGE = 50;
const STATES = ["", "created", "running", "completed", "failed", "cancelled"];

// A run that asked for approval has ended with that; the decision is another run. `waits`: there is none yet.
export function Status({ run, waits }) {
  if (run.stop_reason !== "requires_approval") return html`<span class="status ${run.status}">${run.status}</span>`;
  return html`<span class="status ${waits ? "held" : run.status}">${waits ? "waits for approval" : "decided"}</span>`;
}

export function Runs({ approvals }) {
  const [status, setStatus] = useState("");
  const [pages, setPages] = useState(1);
  const { data, error } = useLoaded((abort) => get(`/runs/${query({ statuses: status, limit: PAGE * pages })}`, abort), [status, pages], 2000, ({ type, status: became }) => type === "run" || became === "deleted");
  const waiting = new Set(approvals.value.map(({ run_id }) => run_id));
  const waits = ({ id }) => waiting.has(id) || approvals.value.length >= MOST_APPROVALS;
  return html`<main id="main" tabindex="-1">
    <header class="row"><h1>Runs</h1>
      <select aria-label="Only runs that are" value=${status} onChange=${(event) => setStatus(event.target.value)}>
        ${STATES.map((one) => html`<option value=${one}>${one || "all"}</option>`)}</select></header>
    <${Problem} error=${error} />
    ${!data && !error && html`<${Waiting} />`}
    ${data?.length === 0 && html`<p class="empty">No runs. A run begins with each message to an agent.</p>`}
    ${data?.length > 0 && html`<table><thead><tr><th>Run</th><th>Status</th><th>Ended with</th><th>Agent</th><th>Began</th><th>Took</th></tr></thead>
      <tbody>${data.map((run) => html`<tr key=${run.id}>
        <td><a href=${`#/runs/${run.id}`}>${shortId(run.id)}</a></td><td><${Status} run=${run} waits=${waits(run)} /></td><td>${run.stop_reason ?? ""}</td>
        <td><a href=${`#/agents/${run.agent_id}/chat`}>${shortId(run.agent_id)}</a></td><td>${ago(run.created_at)}</td><td>${duration(run.total_duration_ns)}</td></tr>`)}</tbody></table>
      ${data.length === pages * PAGE && html`<button onClick=${() => setPages(pages + 1)}>Show more</button>`}`}
  </main>`;
}
