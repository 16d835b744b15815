// The context window as a stacked bar: tokens by section, and what fills each.
import { html, useState } from "../html.js";
import { count } from "../formats.js";
import { Plain } from "./markdown.js";

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
  ["messages", "Messages", "num_tokens_messages", null],
];

export function sectionsOf(context) {
  return SECTIONS.map(([id, label, tokens, content]) => ({ id, label, tokens: context[tokens] ?? 0, content: content && context[content] }))
    .filter(({ tokens }) => tokens > 0);
}

export function ContextBar({ context }) {
  const [open, setOpen] = useState(null);
  const sections = sectionsOf(context);
  const used = sections.reduce((sum, { tokens }) => sum + tokens, 0);
  const most = context.context_window_size_max;
  const shown = sections.find(({ id }) => id === open);
  return html`<section class="context" aria-label="Context window">
    <p><b data-total=${used}>${count(used)}</b> of ${count(most)} tokens, ${((100 * used) / most).toFixed(1)} %</p>
    <div class="bar" role="img" aria-label="${sections.map(({ label, tokens }) => `${label}: ${tokens} tokens`).join(", ")}">
      ${sections.map(({ id, tokens }) => html`<span class="part ${id}" style=${{ flexGrow: tokens }}></span>`)}
    </div>
    <ul class="legend">${sections.map(({ id, label, tokens }) => html`<li>
      <button class="plain" aria-pressed=${open === id} onClick=${() => setOpen(open === id ? null : id)}><i class="part ${id}"></i>${label} <b data-section=${id}>${count(tokens)}</b></button></li>`)}</ul>
    ${shown && html`<${Plain} text=${typeof shown.content === "string" ? shown.content : shown.content ? JSON.stringify(shown.content, null, 2) : "See the chat."} />`}
  </section>`;
}
