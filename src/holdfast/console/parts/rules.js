// Tool rules as sentences. Those that only name a tool, or a tool and others, can be added here.
import { patch } from "../api.js";
import { html, useState } from "../html.js";
import { visible } from "./text.js";

const listed = (names) => names.join(", ");

const SENTENCES = {
  run_first: ({ tool_name, args }) => `${tool_name} is called first${args && Object.keys(args).length ? `, with ${JSON.stringify(args)}` : ""}.`,
  exit_loop: ({ tool_name }) => `After ${tool_name} the turn ends.`,
  continue_loop: ({ tool_name }) => `After ${tool_name} the agent goes on.`,
  required_before_exit: ({ tool_name }) => `${tool_name} must be called before the turn may end.`,
  max_count_per_step: ({ tool_name, max_count_limit }) => `${tool_name} is called at most ${max_count_limit} ${max_count_limit === 1 ? "time" : "times"} in a turn.`,
  constrain_child_tools: ({ tool_name, children }) => `After ${tool_name} only ${listed(children) || "nothing"} may be called.`,
  parent_last_tool: ({ tool_name, children }) => `${listed(children)} may be called only right after ${tool_name}.`,
  conditional: ({ tool_name, child_output_mapping, default_child }) =>
    `What follows ${tool_name} depends on its result: ${Object.entries(child_output_mapping).map(([output, child]) => `“${output}” leads to ${child}`).join(", ")}${default_child ? `, anything else to ${default_child}` : ""}.`,
  requires_approval: ({ tool_name }) => `${tool_name} needs approval.`,
};

export const sentenceOf = (rule) => SENTENCES[rule.type]?.(rule) ?? `${rule.tool_name}: ${rule.type}.`;

const SIMPLE = { run_first: "is called first", exit_loop: "ends the turn", continue_loop: "lets the agent go on", required_before_exit: "must be called before the turn ends", max_count_per_step: "is called at most so many times" };

export function Rules({ agent, act }) {
  const [tool, setTool] = useState("");
  const [type, setType] = useState("run_first");
  const [most, setMost] = useState("1");
  const write = (tool_rules) => act(() => patch(`/agents/${agent.id}`, { tool_rules }));
  const add = (event) => {
    event.preventDefault();
    write([...agent.tool_rules, { type, tool_name: tool, ...(type === "max_count_per_step" ? { max_count_limit: Number(most) } : {}) }]);
  };
  const shown = agent.tool_rules.filter((rule) => rule.type !== "requires_approval");
  return html`${shown.length === 0 && html`<p class="empty">No rules: the model calls its tools in any order. Approvals are switched on at each tool.</p>`}
    <ul class="plain-list rules">${shown.map((rule) => html`<li key=${JSON.stringify(rule)}>${visible(sentenceOf(rule))}
      <button class="plain" aria-label=${`Remove: ${sentenceOf(rule)}`} onClick=${() => write(agent.tool_rules.filter((one) => one !== rule))}>Remove</button></li>`)}</ul>
    <form class="row" onSubmit=${add}>
      <select aria-label="Tool of the rule" value=${tool} onChange=${(event) => setTool(event.target.value)}><option value="">Add a rule for …</option>${agent.tools.map(({ name }) => html`<option value=${name}>${name}</option>`)}</select>
      <select aria-label="What the rule says" value=${type} onChange=${(event) => setType(event.target.value)}>${Object.entries(SIMPLE).map(([value, label]) => html`<option value=${value}>${label}</option>`)}</select>
      ${type === "max_count_per_step" && html`<input type="number" min="0" aria-label="How many times" class="small" value=${most} onInput=${(event) => setMost(event.target.value)} />`}
      <button disabled=${!tool}>Add rule</button></form>`;
}
