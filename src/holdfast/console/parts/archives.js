// The archives of an agent, and what is in its archival memory: search, insert, delete.
import { get, patch, post, query, remove } from "../api.js";
import { ago } from "../formats.js";
import { html, useState } from "../html.js";
import { Problem, useLoaded } from "./load.js";
import { Plain, visible } from "./text.js";

const SHOWN = 20;

// What was found, or the newest, as {id, text, at, tags}.
async function passages(agentId, words, abort) {
  if (words) {
    const { results } = await get(`/agents/${agentId}/archival-memory/search${query({ query: words, top_k: SHOWN })}`, abort);
    return results.map(({ id, content, timestamp, tags }) => ({ id, text: content, at: timestamp, tags }));
  }
  const newest = await get(`/agents/${agentId}/archival-memory${query({ limit: SHOWN, ascending: false })}`, abort);
  return newest.map(({ id, text, created_at, tags }) => ({ id, text, at: created_at, tags }));
}

function Passages({ agentId, archives, changed }) {
  const [words, setWords] = useState("");
  const [asked, setAsked] = useState("");
  const [text, setText] = useState("");
  const [failure, setFailure] = useState(null);
  const { data, error, again } = useLoaded((abort) => passages(agentId, asked, abort), [agentId, asked, archives]);
  const act = async (work) => {
    try {
      await work();
      setFailure(null);
    } catch (problem) {
      setFailure(problem);
    }
    again();
    changed();
  };
  const insert = (event) => {
    event.preventDefault();
    act(() => post(`/agents/${agentId}/archival-memory`, { text })).then(() => setText(""));
  };
  return html`<form class="row" role="search" onSubmit=${(event) => { event.preventDefault(); setAsked(words.trim()); }}>
      <input type="search" class="grow" aria-label="Search archival memory" placeholder="Search archival memory" value=${words} onInput=${(event) => { setWords(event.target.value); if (!event.target.value) setAsked(""); }} /><button>Search</button></form>
    <${Problem} error=${failure ?? error} />
    ${data?.length === 0 && html`<p class="empty">${asked ? `Nothing was found for “${asked}”.` : "Nothing is stored yet. The agent writes here with archival_memory_insert, and you can below."}</p>`}
    <ul class="plain-list passages">${data?.map((one) => html`<li key=${one.id}><${Plain} text=${one.text} limit=${300} />
      <p class="note">${ago(one.at)}${one.tags?.length > 0 && ` · ${one.tags.map(visible).join(", ")}`} ${one.id && html`<button class="plain" aria-label="Delete this passage" onClick=${() => act(() => remove(`/agents/${agentId}/archival-memory/${one.id}`))}>Delete</button>`}</p></li>`)}</ul>
    <form class="stack" onSubmit=${insert}><label>New passage<textarea rows="2" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label><button disabled=${!text.trim()}>Insert</button></form>`;
}

export function Archives({ agentId }) {
  const [failure, setFailure] = useState(null);
  const [chosen, setChosen] = useState("");
  const { data, error, again } = useLoaded(async (abort) => {
    const [mine, all] = await Promise.all([get(`/archives/${query({ agent_id: agentId })}`, abort), get(`/archives/${query({ limit: 100 })}`, abort)]);
    return { mine, others: all.filter(({ id }) => !mine.some((one) => one.id === id)) };
  }, [agentId]);
  const act = async (work) => {
    try {
      await work();
      setFailure(null);
    } catch (problem) {
      setFailure(problem);
    }
    again();
  };
  const { mine = [], others = [] } = data ?? {};
  return html`<${Problem} error=${failure ?? error} />
    ${mine.length > 0 && html`<p class="chips">${mine.map((one) => html`<span class="chip" key=${one.id}>${visible(one.name)} <button class="icon" aria-label=${`Detach ${one.name}`} onClick=${() => act(() => patch(`/agents/${agentId}/archives/detach/${one.id}`))}>✕</button></span>`)}</p>`}
    ${others.length > 0 && html`<form class="row" onSubmit=${(event) => { event.preventDefault(); if (chosen) act(() => patch(`/agents/${agentId}/archives/attach/${chosen}`)); }}>
      <select aria-label="Archive to attach" value=${chosen} onChange=${(event) => setChosen(event.target.value)}><option value="">Attach an archive …</option>${others.map((one) => html`<option value=${one.id}>${one.name}</option>`)}</select><button disabled=${!chosen}>Attach archive</button></form>`}
    <${Passages} agentId=${agentId} archives=${mine.map(({ id }) => id).join()} changed=${() => mine.length === 0 && again()} />`;
}
