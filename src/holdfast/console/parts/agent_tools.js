// The tools of an agent: approval switches, a form to try each, attach and detach.
import { patch, post } from "../api.js";
import { html, useState } from "../html.js";
import { Problem } from "./load.js";
import { Plain, visible } from "./text.js";
import { SchemaForm } from "./schema_form.js";

function TryTool({ agentId, tool }) {
  const [result, setResult] = useState(null);
  const [busy, setBusy] = useState(false);
  const run = async (args) => {
    setBusy(true);
    try {
      setResult({ answer: await post(`/agents/${agentId}/tools/${encodeURIComponent(tool.name)}/run`, { args }) });
    } catch (error) {
      setResult({ error });
    }
    setBusy(false);
  };
  return html`<details class="try"><summary>Try it</summary>
    <${SchemaForm} schema=${tool.json_schema?.parameters ?? {}} action="Run outside any conversation" submit=${run} busy=${busy} primary=${false} />
    ${result?.error && html`<${Problem} error=${result.error} />`}
    ${result?.answer && html`<p><span class="status ${result.answer.status === "success" ? "completed" : "failed"}">${result.answer.status}</span></p>
      <${Plain} text=${String(result.answer.func_return ?? JSON.stringify(result.answer))} />
      ${result.answer.stdout?.length > 0 && html`<p class="note">Output</p><${Plain} text=${[result.answer.stdout].flat().join("\n")} />`}`}</details>`;
}

export function Tools({ agent, all, act }) {
  const attached = new Set(agent.tools.map(({ id }) => id));
  const needing = new Set(agent.tool_rules.filter(({ type }) => type === "requires_approval").map(({ tool_name }) => tool_name));
  const [adding, setAdding] = useState("");
  const [wanted, setWanted] = useState({}); // by a tool's name, until the server has said otherwise
  const require = async (name, checked) => {
    setWanted((before) => ({ ...before, [name]: checked }));
    const done = await act(() => patch(`/agents/${agent.id}/tools/approval/${encodeURIComponent(name)}`, { requires_approval: checked }));
    if (!done) setWanted((before) => ({ ...before, [name]: !checked }));
  };
  return html`${agent.tools.length === 0 && html`<p class="empty">No tools. The agent can only talk.</p>`}
    <ul class="cards">${agent.tools.map((tool) => html`<li key=${tool.id} data-tool=${tool.name}>
      <div class="row tight"><code>${visible(tool.name)}</code><span class="grow"></span>
        <label class="check"><input type="checkbox" checked=${wanted[tool.name] ?? needing.has(tool.name)} onChange=${(event) => require(tool.name, event.target.checked)} /> needs approval</label>
        <button class="plain" aria-label=${`Detach ${tool.name}`} onClick=${() => act(() => patch(`/agents/${agent.id}/tools/detach/${tool.id}`))}>Detach</button></div>
      <p class="note">${visible((tool.description ?? "").split("\n\n")[0])}</p>
      <${TryTool} agentId=${agent.id} tool=${tool} /></li>`)}</ul>
    <form class="row" onSubmit=${(event) => { event.preventDefault(); if (adding) act(() => patch(`/agents/${agent.id}/tools/attach/${adding}`)); }}>
      <select aria-label="Tool to attach" value=${adding} onChange=${(event) => setAdding(event.target.value)}><option value="">Attach a tool …</option>
        ${all.filter(({ id }) => !attached.has(id)).map((tool) => html`<option value=${tool.id}>${tool.name}</option>`)}</select><button disabled=${!adding}>Attach</button></form>`;
}
