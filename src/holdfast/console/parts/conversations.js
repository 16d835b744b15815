// The conversations of an agent as a tree: a fork stands below what it was made from.
import { get, patch, post, query, remove } from "../api.js";
import { ago, shortId } from "../formats.js";
import { html } from "../html.js";
import { Problem, useLoaded } from "./load.js";
import { visible } from "./text.js";

const MOST = 200;

// [{id, parent, children, …}] at the top, oldest first. What was made from something that is gone stands at the top.
export function treeOf(agentId, conversations) {
  const nodes = new Map([[agentId, { id: agentId, isDefault: true, children: [] }]]);
  for (const one of conversations) nodes.set(one.id, { ...one, children: [] });
  const roots = [nodes.get(agentId)];
  for (const one of [...conversations].sort((first, second) => first.created_at.localeCompare(second.created_at))) {
    const parent = nodes.get(one.forked_from);
    (parent ? parent.children : roots).push(nodes.get(one.id));
  }
  return roots;
}

export const nameOf = (one) => (one.isDefault ? "Default" : one.summary || `${one.forked_from ? "Fork" : "Conversation"} ${shortId(one.id).replace("conv-", "")}`);

function Branch({ nodes, agentId, current, rename, drop }) {
  return html`<ul class="tree">${nodes.map((one) => {
    const isHere = one.isDefault ? !current : one.id === current;
    return html`<li key=${one.id}><div class="leaf ${isHere ? "here" : ""}">
        <a href=${`#/agents/${agentId}/chat${one.isDefault ? "" : `/${one.id}`}`} aria-current=${isHere ? "page" : undefined}>${visible(nameOf(one))}</a>
        <span class="note">${one.isDefault ? "" : ago(one.last_message_at ?? one.created_at)}</span>
        ${isHere && !one.isDefault && rename && html`<button class="icon" aria-label=${`Rename ${nameOf(one)}`} title="Rename" onClick=${() => rename(one)}>✎</button>
          <button class="icon" aria-label=${`Delete ${nameOf(one)}`} title="Delete" onClick=${() => drop(one)}>✕</button>`}</div>
      ${one.children.length > 0 && html`<${Branch} nodes=${one.children} agentId=${agentId} current=${current} rename=${rename} drop=${drop} />`}</li>`;
  })}</ul>`;
}

export async function forkAt(agentId, conversation, messageId) {
  const made = await post(`/conversations/${conversation ?? "default"}/fork${query({ agent_id: agentId, message_id: messageId })}`);
  location.hash = `#/agents/${agentId}/chat/${made.id}`;
}

export function Conversations({ agentId, conversation, brief }) {
  const { data, error, again } = useLoaded((abort) => get(`/conversations/${query({ agent_id: agentId, limit: MOST })}`, abort), [agentId, conversation]);
  const start = async () => {
    const made = await post(`/conversations/${query({ agent_id: agentId })}`);
    location.hash = `#/agents/${agentId}/chat/${made.id}`;
  };
  const rename = async (one) => {
    const summary = prompt("Name of this conversation", one.summary ?? "");
    if (summary !== null) await patch(`/conversations/${one.id}`, { summary });
    again();
  };
  const drop = async (one) => {
    if (!confirm(`Delete ${nameOf(one)}? Its runs are stopped. Forks of it stay.`)) return;
    await remove(`/conversations/${one.id}`);
    location.hash = `#/agents/${agentId}/chat`;
  };
  const tree = html`<${Problem} error=${error} /><${Branch} nodes=${treeOf(agentId, data ?? [])} agentId=${agentId} current=${brief ? "none" : conversation} rename=${!brief && rename} drop=${drop} />`;
  if (brief) return tree;
  return html`<div class="row tight"><button onClick=${start}>New</button><button title="Copy this conversation and go on apart" onClick=${() => forkAt(agentId, conversation)}>Fork</button></div>${tree}`;
}
