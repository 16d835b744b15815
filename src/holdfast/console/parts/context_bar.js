// The context window as a stacked bar: tokens by section, and what fills each.
import { html, useState } from "../html.js";
import { count } from "../formats.js";
import { textOf } from "../transcript.js";
import { Plain, visible } from "./text.js";

// In the order in which the model is sent them. The sections add up to `context_window_size_current`.
const SECTIONS = [
  ["system", "System prompt", "num_tokens_system", "system_prompt"],
  ["memory", "Memory blocks", "num_tokens_core_memory", "core_memory"],
  ["metadata", "Metadata", "num_tokens_external_memory_summary", "external_memory_summary"],
  ["files", "Files", "num_tokens_directories", "directories"],
  ["filesystem", "Memory files", "num_tokens_memory_filesystem", "memory_filesystem"],
  ["rules", "Tool rules", "num_tokens_tool_usage_rules", "tool_usage_rules"],
  ["summary", "Summary", "num_tokens_summary_memory", "summary_memory"],
  ["tools", "Tools", "num_tokens_functions_definitions", "functions_definitions"],
  ["messages", "Messages", "num_tokens_messages", "messages"],
];
const MOST_ROWS = 100;

export function sectionsOf(context) {
  return SECTIONS.map(([id, label, tokens, content]) => ({ id, label, tokens: context[tokens] ?? 0, content: context[content] }))
    .filter(({ tokens }) => tokens > 0);
}

const sizeOf = (value) => (typeof value === "string" ? value : JSON.stringify(value)).length;

function describe(row) {
  if (row.function ?? row.parameters) return { name: (row.function ?? row).name, text: (row.function ?? row).description ?? "" };
  const calls = row.tool_calls?.map((call) => `calls ${call.function?.name ?? call.name}`).join(", ");
  const text = row.content === undefined && row.text === undefined ? "" : textOf(row.content ?? row.text);
  return { name: row.role ?? row.message_type ?? "message", text: text || calls || textOf(row.tool_returns?.[0]?.tool_return ?? row.tool_returns?.[0]?.func_response) || "" };
}

// Tools and messages as rows, each with its share of the section's tokens.
function Rows({ rows, tokens }) {
  const whole = rows.reduce((sum, row) => sum + sizeOf(row), 0) || 1;
  return html`<table class="filling"><tbody>${rows.slice(-MOST_ROWS).map((row) => {
    const { name, text } = describe(row);
    return html`<tr><th scope="row">${visible(String(name))}</th><td>${visible(text.slice(0, 160))}</td><td class="number">about ${count(Math.round((tokens * sizeOf(row)) / whole))}</td></tr>`;
  })}</tbody></table>${rows.length > MOST_ROWS && html`<p class="note">The newest ${MOST_ROWS} of ${count(rows.length)}.</p>`}`;
}

export function ContextBar({ context }) {
  const [open, setOpen] = useState(null);
  const sections = sectionsOf(context);
  const used = sections.reduce((sum, { tokens }) => sum + tokens, 0);
  const most = context.context_window_size_max;
  const shown = sections.find(({ id }) => id === open);
  const share = (tokens) => `${((100 * tokens) / Math.max(1, used)).toFixed(0)} %`;
  return html`<div class="context">
    <p class="figure"><b data-total=${used}>${count(used)}</b> of ${count(most)} tokens <span class="note">${((100 * used) / most).toFixed(1)} % of the window, ${count(context.num_messages)} messages</span></p>
    <div class="bar" role="img" aria-label=${sections.map(({ label, tokens }) => `${label}: ${tokens} tokens`).join(", ")}>
      ${sections.map(({ id, label, tokens }) => html`<span class="part ${id}" title=${`${label}: ${count(tokens)}`} style=${{ flexGrow: tokens }}></span>`)}
    </div>
    <ul class="legend">${sections.map(({ id, label, tokens }) => html`<li>
      <button class="plain" aria-expanded=${open === id ? "true" : "false"} onClick=${() => setOpen(open === id ? null : id)}><i class="part ${id}"></i>${label} <b data-section=${id}>${count(tokens)}</b> <span class="note">${share(tokens)}</span></button></li>`)}</ul>
    ${shown && html`<div class="filled"><h3>${shown.label}</h3>${Array.isArray(shown.content) ? html`<${Rows} rows=${shown.content} tokens=${shown.tokens} />`
      : html`<${Plain} text=${typeof shown.content === "string" ? shown.content : JSON.stringify(shown.content ?? null, null, 2)} />`}</div>`}
  </div>`;
}
