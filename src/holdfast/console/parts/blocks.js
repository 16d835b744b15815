// The memory blocks of an agent: edit, add, attach, detach.
import { get, patch, post, query } from "../api.js";
import { count } from "../formats.js";
import { html, useState } from "../html.js";
import { Problem, useLoaded } from "./load.js";
import { visible } from "./text.js";

function Block({ agentId, block, changed, act }) {
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
  const full = block.limit ? text.length / block.limit : 0;
  return html`<div class="block"><div class="row tight"><label for=${block.id}><b>${visible(block.label)}</b></label>
      <span class="note">${count(text.length)} of ${count(block.limit)} characters${block.read_only ? ", read only for the agent" : ""}</span><span class="grow"></span>
      <button class="plain" onClick=${() => act(() => patch(`/agents/${agentId}/core-memory/blocks/detach/${block.id}`))} aria-label=${`Detach ${block.label}`}>Detach</button></div>
    ${block.description && html`<p class="note">${visible(block.description)}</p>`}
    <textarea id=${block.id} rows=${Math.min(12, Math.max(2, text.split("\n").length))} value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
    ${full > 0.8 && html`<meter min="0" max="1" high="0.9" value=${full} aria-label="How full the block is"></meter>`}
    ${text !== block.value && html`<div class="row tight"><button class="primary" onClick=${save}>Save</button><button onClick=${() => setText(block.value)}>Undo</button></div>`}<${Problem} error=${error} /></div>`;
}

function Add({ agent, act }) {
  const [label, setLabel] = useState("");
  const [value, setValue] = useState("");
  const [chosen, setChosen] = useState("");
  const attached = new Set(agent.memory.blocks.map(({ id }) => id));
  const { data } = useLoaded((abort) => get(`/blocks/${query({ limit: 100 })}`, abort), [agent.memory.blocks.length]);
  const attach = (id) => patch(`/agents/${agent.id}/core-memory/blocks/attach/${id}`);
  const others = (data ?? []).filter(({ id }) => !attached.has(id));
  const add = (event) => {
    event.preventDefault();
    act(async () => {
      await attach((await post("/blocks/", { label, value })).id);
      setLabel("");
      setValue("");
    });
  };
  return html`<details class="add"><summary>Add a block</summary>
    <form class="stack" onSubmit=${add}><label>Label<input value=${label} required placeholder="such as project" onInput=${(event) => setLabel(event.target.value)} /></label>
      <label>Text<textarea rows="2" value=${value} onInput=${(event) => setValue(event.target.value)}></textarea></label><button disabled=${!label}>Add block</button></form>
    ${others.length > 0 && html`<form class="row" onSubmit=${(event) => { event.preventDefault(); if (chosen) act(() => attach(chosen)); }}>
      <select aria-label="Block to share with this agent" value=${chosen} onChange=${(event) => setChosen(event.target.value)}><option value="">Or share a block that exists …</option>
        ${others.map((one) => html`<option value=${one.id}>${one.label}: ${one.value.slice(0, 40)}</option>`)}</select><button disabled=${!chosen}>Attach block</button></form>`}</details>`;
}

export function Blocks({ agent, act, changed }) {
  return html`${agent.memory.blocks.length === 0 && html`<p class="empty">No memory blocks. A block is text that the agent always sees and can rewrite.</p>`}
    ${agent.memory.blocks.map((block) => html`<${Block} key=${block.id + block.value} agentId=${agent.id} block=${block} changed=${changed} act=${act} />`)}
    <${Add} agent=${agent} act=${act} />`;
}
