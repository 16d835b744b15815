// A tool call: its arguments in a readable form, its outcome, and the decision if it waits for one.
import { html, useState } from "../html.js";
import { parsed, pretty } from "../formats.js";
import { Images } from "./images.js";
import { Plain, visible } from "./text.js";
import { SchemaForm } from "./schema_form.js";
import { Fields, Value } from "./values.js";

const LABELS = {
  writing: "being written",
  running: "running",
  held: "waits for approval",
  approved: "approved",
  denied: "denied",
  success: "done",
  error: "failed",
};
const SHORT_RESULT = 600;

// What the answer for a client's tool may be. A tool's schema says what it takes, and nothing of what it returns.
const ANSWER = {
  required: ["result"],
  properties: {
    result: { type: "string", multiline: true, named: true, title: "Result of the client's tool", description: "What the model is told. Text, or JSON." },
    status: { type: "string", enum: ["success", "error"], description: "Whether the tool did what it was asked for; success if not set." },
  },
};

export function Arguments({ text }) {
  const fields = parsed(text);
  if (!text || text === "{}") return html`<p class="note">no arguments</p>`;
  if (!fields) return html`<${Plain} text=${pretty(text)} />`;
  return html`<${Fields} fields=${fields} />`;
}

// A result as a table or as JSON if it is JSON, else as text.
function Result({ text }) {
  const fields = parsed(text);
  if (fields && Object.keys(fields).length) return html`<${Value} value=${fields} />`;
  return html`<${Plain} text=${/^\s*\[/.test(text) ? pretty(text) : text} />`;
}

// `decide({approve, reason})`, or `decide({answer, status})` for a client's tool.
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
  if (client) return html`<${SchemaForm} schema=${ANSWER} action="Send result" busy=${busy} submit=${({ result, status }) => act({ answer: result, status })} />`;
  return html`<div class="decision">
    <button class="primary" disabled=${busy} onClick=${() => act({ approve: true })}>Approve</button>
    <button class="danger" disabled=${busy} onClick=${() => act({ approve: false, reason: text || undefined })}>Deny</button>
    <input aria-label="Reason for denying" placeholder="Reason for denying, told to the model" value=${text} onInput=${(event) => setText(event.target.value)} />
  </div>`;
}

function Chosen({ choice, others, undecide }) {
  const what = choice.answer !== undefined ? "answered" : choice.approve ? "approve" : "deny";
  return html`<p class="decision note" role="status">Your decision: ${what}. It is sent when the other ${others === 1 ? "call" : `${others} calls`} of this request ${others === 1 ? "is" : "are"} decided too.
    <button class="plain" onClick=${undecide}>Change</button></p>`;
}

export function ToolCard({ item, decide, client, choice, others = 0, undecide }) {
  const outcome = item.result !== undefined;
  const held = item.state === "held";
  return html`<article class="tool ${item.state}" data-call=${item.callId}>
    <header><code>${visible(item.name ?? "tool")}</code><span class="state">${held && client ? "waits for its client" : (LABELS[item.state] ?? item.state)}</span></header>
    <${Arguments} text=${item.args} />
    ${item.reason && html`<p class="note">Reason: ${visible(item.reason)}</p>`}
    ${held && choice && html`<${Chosen} choice=${choice} others=${others} undecide=${undecide} />`}
    ${held && !choice && decide && html`<${Decision} client=${client} decide=${decide} />`}
    ${held && !choice && others > 0 && html`<p class="note">One of ${others + 1} calls that are decided together.</p>`}
    ${outcome && html`<details class="result" open=${item.result.length < SHORT_RESULT}><summary>Result</summary><${Result} text=${item.result} /><${Images} images=${item.images} />
      ${item.stdout && html`<p class="note">Output</p><${Plain} text=${item.stdout} />`}
      ${item.stderr && html`<p class="note">Errors</p><${Plain} text=${item.stderr} />`}</details>`}
  </article>`;
}
