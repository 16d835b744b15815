// A tool call: its arguments in a readable form, its outcome, and the decision if it waits for one.
import { html, useState } from "../html.js";
import { parsed, pretty } from "../formats.js";
import { Plain, visible } from "./markdown.js";

const LABELS = {
  writing: "being written",
  running: "running",
  held: "waits for approval",
  approved: "approved",
  denied: "denied",
  success: "done",
  error: "failed",
};

export function Arguments({ text }) {
  const fields = parsed(text);
  if (!text || text === "{}") return html`<p class="note">no arguments</p>`;
  if (!fields) return html`<${Plain} text=${pretty(text)} />`;
  return html`<dl class="arguments">${Object.entries(fields).map(([name, value]) => html`
    <dt>${visible(name)}</dt><dd><${Plain} text=${typeof value === "string" ? value : JSON.stringify(value, null, 2)} limit=${1500} /></dd>`)}</dl>`;
}

// `decide({approve, reason})` or `decide({answer})` for a client's tool.
export function Decision({ client, decide }) {
  const [text, setText] = useState("");
  const [busy, setBusy] = useState(false);
  const act = async (decision) => {
    setBusy(true);
    try {
      await decide(decision);
    } finally {
      setBusy(false);
    }
  };
  if (client)
    return html`<form class="decision" onSubmit=${(event) => { event.preventDefault(); act({ answer: text }); }}>
      <label>Result of the client's tool<textarea rows="2" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
      <button class="primary" disabled=${busy}>Send result</button>
    </form>`;
  return html`<div class="decision">
    <button class="primary" disabled=${busy} onClick=${() => act({ approve: true })}>Approve</button>
    <input aria-label="Reason for denying" placeholder="Reason, for the model" value=${text} onInput=${(event) => setText(event.target.value)} />
    <button class="danger" disabled=${busy} onClick=${() => act({ approve: false, reason: text || undefined })}>Deny</button>
  </div>`;
}

export function ToolCard({ item, decide }) {
  const outcome = item.result !== undefined;
  return html`<article class="tool ${item.state}" data-call=${item.callId}>
    <header><code>${visible(item.name ?? "tool")}</code><span class="state">${LABELS[item.state] ?? item.state}</span></header>
    <${Arguments} text=${item.args} />
    ${item.reason && html`<p class="note">Reason: ${visible(item.reason)}</p>`}
    ${item.state === "held" && decide && html`<${Decision} decide=${decide} />`}
    ${outcome && html`<details open=${item.result.length < 600}><summary>Result</summary><${Plain} text=${item.result} />
      ${item.stdout && html`<p class="note">Output</p><${Plain} text=${item.stdout} />`}
      ${item.stderr && html`<p class="note">Errors</p><${Plain} text=${item.stderr} />`}</details>`}
  </article>`;
}
