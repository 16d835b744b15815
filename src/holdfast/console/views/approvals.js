// The inbox: every call that waits for a person or for a client, over all agents.
import { get, post } from "../api.js";
import { ago, shortId } from "../formats.js";
import { html, useState } from "../html.js";
import { Problem, useLoaded } from "../parts/load.js";
import { Arguments, Decision } from "../parts/tool_card.js";

export function answerBody(calls, decision) {
  const approvals = calls.map(({ tool_call_id }) =>
    decision.answer !== undefined
      ? { type: "tool", tool_call_id, tool_return: decision.answer, status: decision.status ?? "success" }
      : { type: "approval", tool_call_id, approve: decision.approve, reason: decision.reason });
  return { messages: [{ type: "approval", approvals }] };
}

// In the background: the person who decides need not wait for what follows.
export function answer(waiting, decision) {
  const body = { ...answerBody(waiting.tool_calls, decision), background: true };
  return waiting.conversation_id
    ? post(`/conversations/${waiting.conversation_id}/messages`, { ...body, streaming: true })
    : post(`/agents/${waiting.agent_id}/messages/async`, answerBody(waiting.tool_calls, decision));
}

export function Approvals({ approvals, refresh }) {
  const [chosen, setChosen] = useState(new Set());
  const [failure, setFailure] = useState(null);
  const waiting = approvals.value;
  const ids = [...new Set(waiting.map(({ agent_id }) => agent_id))];
  const names = useLoaded(async () => Object.fromEntries(await Promise.all(
    ids.map(async (id) => [id, (await get(`/agents/${id}`)).name]))), [ids.join()]);
  const decide = async (items, decision) => {
    const results = await Promise.allSettled(items.map((item) => answer(item, decision)));
    setFailure(results.find(({ status }) => status === "rejected")?.reason ?? null);
    setChosen(new Set());
    await refresh();
  };
  const selected = waiting.filter(({ run_id }) => chosen.has(run_id));
  const toggle = (id) => {
    const next = new Set(chosen);
    if (!next.delete(id)) next.add(id);
    setChosen(next);
  };
  return html`<main id="main" tabindex="-1">
    <header class="row"><h1>Approvals</h1>
      ${selected.length > 0 && html`<button class="primary" onClick=${() => decide(selected, { approve: true })}>Approve ${selected.length}</button>
        <button class="danger" onClick=${() => decide(selected, { approve: false })}>Deny ${selected.length}</button>`}
    </header>
    <${Problem} error=${failure} />
    ${waiting.length === 0 && html`<p class="empty">Nothing waits for a decision. A tool asks for one when it requires approval: switch it on in an agent's tools.</p>`}
    ${waiting.map((item) => {
      const client = item.tool_calls.every((call) => call.client);
      const mixed = !client && item.tool_calls.some((call) => call.client);
      const chat = `#/agents/${item.agent_id}/chat${item.conversation_id ? `/${item.conversation_id}` : ""}`;
      return html`<article class="tool held" key=${item.run_id} data-run=${item.run_id}>
        <header>
          ${!client && !mixed && html`<input type="checkbox" aria-label="Choose this request" checked=${chosen.has(item.run_id)} onChange=${() => toggle(item.run_id)} />`}
          <a href=${chat}>${names.data?.[item.agent_id] ?? shortId(item.agent_id)}</a>
          <span class="state">${client ? "waits for its client" : "waits for approval"}, asked ${ago(item.asked_at)}</span>
          <a class="note" href=${`#/runs/${item.run_id}`}>run</a>
        </header>
        ${item.tool_calls.map((call) => html`<div><code>${call.name}</code><${Arguments} text=${call.arguments} /></div>`)}
        ${item.changed_secrets?.length > 0 && html`<p class="problem">Since it was asked, these secrets have other values: ${item.changed_secrets.join(", ")}</p>`}
        ${mixed
          ? html`<p class="note">Some of these calls wait for a person, others for the agent's client. <a href=${chat}>Decide them one by one in the chat</a>.</p>`
          : html`<${Decision} client=${client} decide=${(decision) => decide([item], decision)} />`}
      </article>`;
    })}
  </main>`;
}
