// One agent: memory, context window, tools, rules, model, secrets.
import { get, patch, post, query, remove } from "../api.js";
import { html, useState } from "../html.js";
import { ContextBar } from "../parts/context_bar.js";
import { Files } from "../parts/files.js";
import { Problem, useLoaded, Waiting } from "../parts/load.js";
import { Plain } from "../parts/markdown.js";

function Block({ agentId, block, changed }) {
  const [text, setText] = useState(block.value);
  const [error, setError] = useState(null);
  const save = async () => {
    try {
      await patch(`/agents/${agentId}/core-memory/blocks/${encodeURIComponent(block.label)}`, { value: text });
      setError(null);
      changed();
    } catch (problem) {
      setError(problem);
    }
  };
  return html`<div class="block"><label><b>${block.label}</b> <span class="note">${text.length} of ${block.limit} characters${block.read_only ? ", read only for the agent" : ""}</span>
    <textarea rows=${Math.min(12, Math.max(2, text.split("\n").length))} value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
    ${text !== block.value && html`<button class="primary" onClick=${save}>Save</button>`}<${Problem} error=${error} /></div>`;
}

function TryTool({ agentId, tool }) {
  const properties = tool.json_schema?.parameters?.properties ?? {};
  const [values, setValues] = useState({});
  const [result, setResult] = useState(null);
  const run = async (event) => {
    event.preventDefault();
    const args = {};
    for (const [name, text] of Object.entries(values)) {
      if (text === "") continue;
      try {
        args[name] = properties[name]?.type === "string" ? text : JSON.parse(text);
      } catch {
        return setResult({ error: { message: `${name}: this is not JSON.` } });
      }
    }
    try {
      const answer = await post(`/agents/${agentId}/tools/${encodeURIComponent(tool.name)}/run`, { args });
      setResult({ answer });
    } catch (error) {
      setResult({ error });
    }
  };
  return html`<details class="try"><summary>Try it</summary><form onSubmit=${run}>
    ${Object.entries(properties).map(([name, schema]) => html`<label>${name} <span class="note">${schema.description ?? schema.type ?? ""}</span>
      <input value=${values[name] ?? ""} onInput=${(event) => setValues({ ...values, [name]: event.target.value })} /></label>`)}
    <button>Run outside any conversation</button></form>
    ${result?.error && html`<${Problem} error=${result.error} />`}
    ${result?.answer && html`<p>${result.answer.status}</p><${Plain} text=${String(result.answer.func_return ?? JSON.stringify(result.answer))} />`}</details>`;
}

function Tools({ agent, all, act }) {
  const attached = new Set(agent.tools.map(({ id }) => id));
  const needing = new Set(agent.tool_rules.filter(({ type }) => type === "requires_approval").map(({ tool_name }) => tool_name));
  const [adding, setAdding] = useState("");
  const [wanted, setWanted] = useState({}); // by a tool's name, until the server has said otherwise
  const require = async (name, checked) => {
    setWanted((before) => ({ ...before, [name]: checked }));
    const done = await act(() => patch(`/agents/${agent.id}/tools/approval/${encodeURIComponent(name)}`, { requires_approval: checked }));
    if (!done) setWanted((before) => ({ ...before, [name]: !checked }));
  };
  return html`<table><tbody>${agent.tools.map((tool) => html`<tr key=${tool.id}>
      <td><code>${tool.name}</code> <span class="note">${tool.description}</span><${TryTool} agentId=${agent.id} tool=${tool} /></td>
      <td><label class="check"><input type="checkbox" checked=${wanted[tool.name] ?? needing.has(tool.name)}
        onChange=${(event) => require(tool.name, event.target.checked)} /> needs approval</label></td>
      <td><button onClick=${() => act(() => patch(`/agents/${agent.id}/tools/detach/${tool.id}`))}>Detach</button></td></tr>`)}</tbody></table>
    <form class="row" onSubmit=${(event) => { event.preventDefault(); if (adding) act(() => patch(`/agents/${agent.id}/tools/attach/${adding}`)); }}>
      <select aria-label="Tool to attach" value=${adding} onChange=${(event) => setAdding(event.target.value)}><option value="">Attach a tool …</option>
        ${all.filter(({ id }) => !attached.has(id)).map((tool) => html`<option value=${tool.id}>${tool.name}</option>`)}</select><button>Attach</button></form>`;
}

function Secrets({ agent, act }) {
  const [name, setName] = useState("");
  const [value, setValue] = useState("");
  const save = (event) => {
    event.preventDefault();
    act(() => patch(`/agents/${agent.id}`, { secrets: { ...Object.fromEntries((agent.secrets ?? []).map(({ key, value: kept }) => [key, kept ?? ""])), [name]: value } }));
  };
  return html`<p class="note">Tools read them from their environment. They are written here and never shown.</p>
    <ul>${(agent.secrets ?? []).map(({ key }) => html`<li><code>${key}</code></li>`)}</ul>
    <form class="row" onSubmit=${save}><input aria-label="Name of a secret" placeholder="NAME" value=${name} onInput=${(event) => setName(event.target.value)} />
      <input type="password" autocomplete="off" aria-label="Its value" placeholder="value" value=${value} onInput=${(event) => setValue(event.target.value)} /><button disabled=${!name}>Save</button></form>`;
}

async function download(agent) {
  const content = await get(`/agents/${agent.id}/export`);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(content, null, 2)], { type: "application/json" }));
  link.download = `${agent.name}.af`;
  link.click();
  URL.revokeObjectURL(link.href);
}

export function Agent({ parts: [id] }) {
  const [failure, setFailure] = useState(null);
  const { data, error, again } = useLoaded(async (abort) => {
    const [agent, context, tools, models] = await Promise.all([
      get(`/agents/${id}`, abort), get(`/agents/${id}/context`, abort), get(`/tools/${query({ limit: 200 })}`, abort), get("/models/", abort)]);
    return { agent, context, tools, models };
  }, [id]);
  if (!data) return html`<main id="main" tabindex="-1">${error ? html`<${Problem} error=${error} />` : html`<${Waiting} />`}</main>`;
  const { agent, context, tools, models } = data;
  const act = async (work) => {
    let problem = null;
    try {
      await work();
    } catch (error) {
      problem = error;
    }
    setFailure(problem);
    again();
    return problem === null;
  };
  const rules = agent.tool_rules.filter(({ type }) => type !== "requires_approval");
  const destroy = () => confirm(`Delete ${agent.name} with its messages and runs? This cannot be undone.`) && act(async () => {
    await remove(`/agents/${id}`);
    location.hash = "#/";
  });
  return html`<main id="main" tabindex="-1">
    <header class="row"><h1>${agent.name}</h1><a href=${`#/agents/${id}/chat`}>Chat</a><span class="note">${agent.agent_type}</span>
      <button onClick=${() => act(() => download(agent))}>Export</button><button class="danger" onClick=${destroy}>Delete</button></header>
    <${Problem} error=${failure ?? error} />
    <h2>Context window</h2><${ContextBar} context=${context} />
    <h2>Memory</h2>${agent.memory.blocks.length === 0 && html`<p class="empty">This agent has no memory blocks.</p>`}
    ${agent.memory.blocks.map((block) => html`<${Block} key=${block.id + block.value} agentId=${id} block=${block} changed=${again} />`)}
    <h2>Model</h2><label>Model <select value=${agent.model} onChange=${(event) => act(() => patch(`/agents/${id}`, { model: event.target.value }))}>
      ${[...new Set([agent.model, ...models.map(({ handle }) => handle)])].map((handle) => html`<option value=${handle}>${handle}</option>`)}</select></label>
    <details><summary>Settings</summary><${Plain} text=${JSON.stringify(agent.model_settings, null, 2)} /></details>
    <h2>Tools</h2><${Tools} agent=${agent} all=${tools} act=${act} />
    <h2>Files</h2><${Files} agentId=${id} />
    ${rules.length > 0 && html`<h2>Tool rules</h2><${Plain} text=${JSON.stringify(rules, null, 2)} />`}
    <h2>Secrets</h2><${Secrets} agent=${agent} act=${act} />
    <h2>Instructions</h2><${Plain} text=${agent.system} />
  </main>`;
}
