// One run: what it waits for, a waterfall of its steps, its events, and what was sent to the model where that was traced.
import { events, get, post } from "../api.js";
import { count, duration, money, pretty, shortId, time } from "../formats.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { forkAt } from "../parts/conversations.js";
import { Problem, useLoaded, Waiting } from "../parts/load.js";
import { Plain, visible } from "../parts/text.js";
import { Arguments } from "../parts/tool_card.js";
import { Waterfall } from "../parts/waterfall.js";
import { Status } from "./runs.js";

const MOST_EVENTS = 2000;
const LOOK_MS = 2000;

const isOpen = ({ run, why }) => why.waiting_for !== null || ["created", "running"].includes(run.status);

async function load(id, abort) {
  const [run, why, steps, usage] = await Promise.all([
    get(`/runs/${id}`, abort), get(`/runs/${id}/why`, abort), get(`/runs/${id}/steps?order=asc&limit=200`, abort), get(`/runs/${id}/usage`, abort)]);
  const metrics = await Promise.all(steps.map((step) => get(`/steps/${step.id}/metrics`, abort).catch(() => null)));
  return { run, why, usage, steps: steps.map((step, place) => ({ ...step, metrics: metrics[place] })) };
}

const short = (row) => String(row.content || row.reasoning || row.tool_call?.arguments || row.tool_call?.name || row.tool_return || row.stop_reason || row.event_data?.message || row.event_type || JSON.stringify(row)).slice(0, 160);

function EventRow({ row }) {
  const [open, setOpen] = useState(false);
  return html`<tr><td class="number">${row.seq_id}</td><td>${row.message_type}</td>
    <td class="wide"><button class="plain" aria-expanded=${open ? "true" : "false"} onClick=${() => setOpen(!open)}><code>${visible(short(row))}</code></button>${open && html`<${Plain} text=${JSON.stringify(row, null, 2)} />`}</td></tr>`;
}

// The stored stream, and while the run goes on what is added to it.
function EventLog({ id }) {
  const [rows, setRows] = useState(null);
  const [error, setError] = useState(null);
  const abort = useRef(new AbortController());
  useEffect(() => () => abort.current.abort(), []);
  const open = async () => {
    const found = [];
    let frame = 0;
    const show = () => { frame = 0; setRows([...found]); };
    setRows([]);
    try {
      for await (const { event, data } of events(`/runs/${id}/stream`, { starting_after: 0 }, abort.current.signal)) {
        if (event === "done" || found.length >= MOST_EVENTS) break;
        if (data.message_type === "ping") continue;
        found.push(data);
        frame ||= requestAnimationFrame(show);
      }
    } catch (problem) {
      if (problem.name !== "AbortError") setError(problem);
    }
  };
  if (error) return html`<p class="empty">${error.message}</p>`;
  if (!rows) return html`<button onClick=${open}>Load the events</button>`;
  return html`<div class="scroll tall"><table class="events"><thead><tr><th class="number">seq</th><th>Type</th><th class="wide">Content</th></tr></thead>
    <tbody>${rows.map((row) => html`<${EventRow} key=${row.seq_id ?? row.id} row=${row} />`)}</tbody></table></div>
    ${rows.length >= MOST_EVENTS && html`<p class="note">The first ${count(MOST_EVENTS)} events. The others are in POST /v1/runs/${id}/stream.</p>`}`;
}

function Traces({ id, steps }) {
  const { data } = useLoaded((abort) => get(`/runs/${id}/trace`, abort), [id, steps.length]);
  if (!data?.length) return html`<p class="empty">Nothing was traced. With <code>HOLDFAST_TRACE_PROVIDER=1</code> the server keeps what models are sent and answer.</p>`;
  const number = (trace) => steps.findIndex((step) => step.id === trace.step_id) + 1;
  return data.map((trace) => html`<details class="trace" key=${trace.step_id}><summary>${number(trace) ? `Step ${number(trace)}` : shortId(trace.step_id)}</summary>
    <h3>Request</h3><${Plain} text=${pretty(JSON.stringify(trace.request_json ?? trace.request))} /><h3>Response</h3><${Plain} text=${pretty(JSON.stringify(trace.response_json ?? trace.response))} /></details>`);
}

function Why({ why, open }) {
  return html`<section class="card why ${open ? "open" : ""}"><h2>${open ? "Why it is waiting" : "How it ended"}</h2><p class="doing">${visible(why.doing)}</p>
    ${why.waiting_for && html`<p>It waits for <b>${visible(why.waiting_for)}</b> since ${time(why.since)}.</p>`}
    ${open && why.driver && html`<p class="note">Driven by: ${visible(why.driver)}.</p>`}
    ${why.changed_secrets?.length > 0 && html`<p class="problem">Since it was asked, these secrets have other values: ${why.changed_secrets.join(", ")}</p>`}
    ${why.calls?.length > 0 && html`<ul class="plain-list">${why.calls.map((call) => html`<li key=${call.tool_call_id}><code>${visible(call.name)}</code> <span class="status ${call.status}">${call.status}</span><${Arguments} text=${call.arguments} /></li>`)}</ul>`}
    ${open && why.unblock?.length > 0 && html`<details><summary>What moves it on</summary><ul>${why.unblock.map((one) => html`<li>${visible(one)}</li>`)}</ul></details>`}
    <details><summary>Its history</summary><${Plain} text=${why.history.join("\n")} /></details></section>`;
}

function Facts({ run, usage }) {
  const facts = { Began: time(run.created_at), Took: duration(run.total_duration_ns), "First token after": duration(run.ttft_ns), "Tokens in": count(usage.prompt_tokens),
    Cached: count(usage.prompt_tokens_details?.cached_tokens), "Tokens out": count(usage.completion_tokens), Cost: money(usage.cost_usd) };
  return html`<dl class="facts-grid">${Object.entries(facts).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export function Run({ parts: [id], refresh }) {
  const [failure, setFailure] = useState(null);
  const { data, error, again } = useLoaded((abort) => load(id, abort), [id], (found) => (isOpen(found) ? LOOK_MS : 0), (change) => change.id === id);
  if (!data) return html`<main id="main" tabindex="-1">${error ? html`<${Problem} error=${error} />` : html`<${Waiting} />`}</main>`;
  const { run, why, steps, usage } = data;
  const act = async (work) => {
    try {
      await work();
      setFailure(null);
    } catch (problem) {
      setFailure(problem);
    }
    again();
    refresh();
  };
  const open = isOpen(data);
  const forkStep = (step) => act(async () => {
    const said = await get(`/steps/${step.id}/messages`);
    await forkAt(run.agent_id, run.conversation_id, said.at(-1)?.id);
  });
  return html`<main id="main" tabindex="-1" class="wide">
    <header class="row page-head"><h1>Run <code>${shortId(id)}</code></h1><${Status} run=${run} waits=${open} /><span class="grow"></span>
      <a class="button" href=${`#/agents/${run.agent_id}/chat${run.conversation_id ? `/${run.conversation_id}` : ""}`}>Chat</a><a class="button" href=${`#/agents/${run.agent_id}`}>Agent</a>
      <button onClick=${() => act(() => forkAt(run.agent_id, run.conversation_id))}>Fork the conversation</button>
      ${open && html`<button class="danger" onClick=${() => act(() => post(`/agents/${run.agent_id}/messages/cancel`, { run_ids: [id] }))}>Cancel</button>`}</header>
    <${Problem} error=${failure ?? error} />
    <${Facts} run=${run} usage=${usage} />
    <${Why} why=${why} open=${open} />
    <section class="card"><h2>Steps</h2><${Waterfall} steps=${steps} history=${why.history} fork=${forkStep} /></section>
    <section class="card"><h2>Events</h2>${run.background ? html`<${EventLog} id=${id} />` : html`<p class="empty">Only background runs keep their events. The console starts its runs in the background.</p>`}</section>
    <section class="card"><h2>Requests to the model</h2><${Traces} id=${id} steps=${steps} /></section>
  </main>`;
}
