// One run: what it waits for, a waterfall of its steps, its events, and what was sent to the model where that was traced.
import { events, get, post } from "../api.js";
import { count, duration, money, pretty, shortId, time } from "../formats.js";
import { html, useState } from "../html.js";
import { Problem, useLoaded, Waiting } from "../parts/load.js";
import { Plain } from "../parts/markdown.js";
import { Status } from "./runs.js";

const MOST_EVENTS = 2000;

async function load(id, abort) {
  const [run, why, steps, usage] = await Promise.all([
    get(`/runs/${id}`, abort), get(`/runs/${id}/why`, abort), get(`/runs/${id}/steps?order=asc&limit=200`, abort), get(`/runs/${id}/usage`, abort)]);
  const metrics = await Promise.all(steps.map((step) => get(`/steps/${step.id}/metrics`, abort).catch(() => null)));
  return { run, why, usage, steps: steps.map((step, place) => ({ ...step, metrics: metrics[place] })) };
}

// Model and tool time of each step on one scale, in nanoseconds since the first step began.
export function spansOf(steps) {
  const timed = steps.filter((step) => step.metrics?.step_start_ns);
  if (!timed.length) return [];
  const begin = Math.min(...timed.map((step) => step.metrics.step_start_ns));
  return timed.map((step, number) => {
    const { step_start_ns, llm_request_start_ns, llm_request_ns, tool_execution_ns, step_ns } = step.metrics;
    const modelAt = (llm_request_start_ns ?? step_start_ns) - begin;
    return {
      id: step.id,
      label: `Step ${number + 1}`,
      at: step_start_ns - begin,
      took: step_ns ?? 0,
      model: { at: modelAt, took: llm_request_ns ?? 0 },
      tool: { at: modelAt + (llm_request_ns ?? 0), took: tool_execution_ns ?? 0 },
      step,
    };
  });
}

function Waterfall({ steps }) {
  const spans = spansOf(steps);
  const whole = Math.max(1, ...spans.map(({ at, took }) => at + took));
  const place = ({ at, took }) => ({ left: `${(100 * at) / whole}%`, width: `${Math.max(0.4, (100 * took) / whole)}%` });
  if (!spans.length) return html`<p class="empty">No step has ended yet.</p>`;
  return html`<table class="waterfall"><thead><tr><th>Step</th><th class="wide">Time</th><th>Model</th><th>Tools</th><th>Tokens in / cached / out</th><th>Cost</th></tr></thead>
    <tbody>${spans.map(({ id, label, model, tool, step }) => html`<tr key=${id}>
      <th scope="row">${label} <span class="note">${step.model_handle}</span>${step.error_type && html` <span class="status failed">${step.error_type}</span>`}</th>
      <td class="wide"><div class="track"><span class="span model" style=${place(model)} title="Model: ${duration(model.took)}"></span>
        ${tool.took > 0 && html`<span class="span tools" style=${place(tool)} title="Tools: ${duration(tool.took)}"></span>`}</div></td>
      <td>${duration(model.took || null)}</td><td>${duration(tool.took || null)}</td>
      <td>${count(step.prompt_tokens)} / ${count(step.cached_input_tokens)} / ${count(step.completion_tokens)}</td><td>${money(step.cost_usd)}</td></tr>`)}</tbody></table>`;
}

function EventLog({ id }) {
  const [rows, setRows] = useState(null);
  const [error, setError] = useState(null);
  const open = async () => {
    const found = [];
    try {
      for await (const { event, data } of events(`/runs/${id}/stream`, { starting_after: 0 })) {
        if (event === "done" || found.length >= MOST_EVENTS) break;
        found.push(data);
      }
      setRows(found);
    } catch (problem) {
      setError(problem);
    }
  };
  if (error) return html`<p class="empty">${error.message}</p>`;
  if (!rows) return html`<button onClick=${open}>Load the events</button>`;
  return html`<table class="events"><thead><tr><th>seq</th><th>Type</th><th class="wide">Content</th></tr></thead><tbody>${rows.map((row) => html`<tr key=${row.seq_id ?? row.id}>
    <td>${row.seq_id}</td><td>${row.message_type}</td>
    <td class="wide"><code>${(row.content ?? row.reasoning ?? row.tool_call?.arguments ?? row.tool_return ?? row.stop_reason ?? JSON.stringify(row)).toString().slice(0, 300)}</code></td></tr>`)}</tbody></table>`;
}

function Traces({ id }) {
  const { data } = useLoaded((abort) => get(`/runs/${id}/trace`, abort), [id]);
  if (!data?.length) return html`<p class="note">Nothing was traced. With <code>HOLDFAST_TRACE_PROVIDER=1</code> the server keeps what models are sent and answer.</p>`;
  return data.map((trace) => html`<details key=${trace.step_id}><summary>${shortId(trace.step_id)}</summary>
    <h4>Request</h4><${Plain} text=${pretty(JSON.stringify(trace.request_json ?? trace.request))} /><h4>Response</h4><${Plain} text=${pretty(JSON.stringify(trace.response_json ?? trace.response))} /></details>`);
}

export function Run({ parts: [id], refresh }) {
  const [failure, setFailure] = useState(null);
  const { data, error, again } = useLoaded((abort) => load(id, abort), [id], 2000, (change) => change.id === id);
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
  const open = why.waiting_for !== null || ["created", "running"].includes(run.status);
  const fork = async () => {
    const made = await post(`/conversations/${run.conversation_id ?? "default"}/fork?agent_id=${run.agent_id}`);
    location.hash = `#/agents/${run.agent_id}/chat/${made.id}`;
  };
  return html`<main id="main" tabindex="-1">
    <header class="row"><h1>Run <code>${shortId(id)}</code></h1><${Status} run=${run} />
      <a href=${`#/agents/${run.agent_id}/chat${run.conversation_id ? `/${run.conversation_id}` : ""}`}>Chat</a>
      ${open && html`<button class="danger" onClick=${() => act(() => post(`/agents/${run.agent_id}/messages/cancel`, { run_ids: [id] }))}>Cancel</button>`}
      <button onClick=${() => act(fork)}>Fork the conversation</button></header>
    <${Problem} error=${failure ?? error} />
    <section class="why ${open ? "open" : ""}"><h2>${open ? "Why it is waiting" : "How it ended"}</h2><p>${why.doing}</p>
      ${why.waiting_for && html`<p>It waits for <b>${why.waiting_for}</b> since ${time(why.since)}.</p>`}
      ${why.calls?.length > 0 && html`<ul>${why.calls.map((call) => html`<li><code>${call.name}</code> ${call.status}</li>`)}</ul>`}
      <details><summary>Its history</summary><${Plain} text=${why.history.join("\n")} /></details></section>
    <p class="facts">Began ${time(run.created_at)} · took ${duration(run.total_duration_ns)} · first token after ${duration(run.ttft_ns)}${" · "}${count(usage.prompt_tokens)} tokens in, ${count(usage.completion_tokens)} out · ${money(usage.cost_usd)}</p>
    <h2>Steps</h2><${Waterfall} steps=${steps} />
    <h2>Events</h2>${run.background ? html`<${EventLog} id=${id} />` : html`<p class="note">Only background runs keep their events.</p>`}
    <h2>Requests to the model</h2><${Traces} id=${id} />
  </main>`;
}
