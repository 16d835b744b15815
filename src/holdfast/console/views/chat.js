// A conversation with an agent: tokens as they come, tool calls as cards, a stop button, and a stream that is joined
// again after a reload, a lost connection or a restart of the server.
import { get } from "../api.js";
import { heldCalls, useChat } from "../chat_session.js";
import { count, time } from "../formats.js";
import { html, useState } from "../html.js";
import { Composer, Queue } from "../parts/composer.js";
import { Conversations, forkAt } from "../parts/conversations.js";
import { Images } from "../parts/images.js";
import { Problem, useLoaded } from "../parts/load.js";
import { Markdown } from "../parts/markdown.js";
import { Plain, visible } from "../parts/text.js";
import { ToolCard } from "../parts/tool_card.js";
import { VirtualList } from "../parts/virtual_list.js";

function Thought({ label, text }) {
  const first = text.trim().split("\n")[0];
  return html`<details class="reasoning"><summary><b>${label}</b> <span class="preview">${visible(first.slice(0, 120))}</span></summary><${Plain} text=${text} /></details>`;
}

function Item({ item, fork, ...deciding }) {
  switch (item.kind) {
    case "user":
      return html`<div class="message user" title=${time(item.date)}><${Plain} text=${item.text} /><${Images} images=${item.images} /></div>`;
    case "assistant":
      return html`<div class="message assistant" title=${time(item.date)}><${Markdown} text=${item.text} /><${Images} images=${item.images} /></div>
        ${item.runId && html`<p class="message-actions"><button class="plain" onClick=${() => fork(item.messageId)}>Fork from here</button> <a href=${`#/runs/${item.runId}`}>Run</a></p>`}`;
    case "reasoning":
      return html`<${Thought} label="Reasoning" text=${item.text} />`;
    case "tool":
      return html`<${ToolCard} item=${item} ...${deciding} />`;
    case "summary":
      return html`<${Thought} label="Earlier messages were summarised" text=${item.text} />`;
    case "retry":
      return html`<p class="note retry">${visible(item.text)}</p>`;
    case "error":
      return html`<p class="problem" role="alert">${visible(item.text)}</p>`;
    default:
      return null;
  }
}

// What a stop left behind: what ran, what did not, and of what it is not known.
export function stopText({ ran, notRun, unknown, saidSomething }) {
  const told = [saidSomething || ran.length || notRun.length || unknown.length ? "Stopped." : "Stopped before the first word."];
  if (ran.length) told.push(`Ran to its end: ${ran.join(", ")}.`);
  if (notRun.length) told.push(`Did not run: ${notRun.join(", ")}.`);
  if (unknown.length) told.push(`Unknown: ${unknown.join(", ")}. It was stopped while it ran, and may have taken effect in part.`);
  if (told.length === 1) told.push("No tool was running.");
  return told.join(" ");
}

const Stopped = ({ stopped }) => html`<p class="stopped" role="status">${stopText(stopped)} <a href=${`#/runs/${stopped.runId}`}>Details</a></p>`;

function Empty({ agent }) {
  return html`<div class="empty-state"><h2>Say something to ${visible(agent?.name ?? "this agent")}</h2>
    <p>Its answer comes word by word, its tool calls as cards. A call that needs your approval waits for you, however long that takes. You can stop a run at any moment.</p></div>`;
}

export function Chat({ parts: [agentId, conversation], approvals, refresh }) {
  const { data: agent, error } = useLoaded((abort) => get(`/agents/${agentId}`, abort), [agentId]);
  const session = useChat(agentId, conversation, refresh);
  const [failure, setFailure] = useState(null);
  const [narrow] = useState(() => matchMedia("(max-width: 45rem)").matches);
  const items = session.transcript.items.filter(({ kind }) => kind !== "system");
  const held = heldCalls(session.transcript);
  const client = new Set(approvals.value.flatMap(({ tool_calls }) => tool_calls).filter((call) => call.client).map(({ tool_call_id }) => tool_call_id));
  const fork = (messageId) => forkAt(agentId, conversation, messageId).catch(setFailure);
  const draw = (item) => html`<${Item} item=${item} fork=${fork} client=${client.has(item.callId)} choice=${session.choices.get(item.callId)} undecide=${() => session.undecide(item.callId)}
    others=${held.filter(({ runId }) => runId === item.runId).length - 1} decide=${session.sending ? null : (decision) => session.decide(item, decision)} />`;
  const { usage } = session.transcript;
  return html`<main id="main" tabindex="-1" class="chat">
    <aside aria-label="Conversations"><details open=${!narrow}><summary><h2>Conversations</h2></summary><${Conversations} agentId=${agentId} conversation=${conversation} /></details></aside>
    <section class="thread">
      <header class="row"><h1>${visible(agent?.name ?? "…")}</h1><span class="note">${agent?.model ?? ""}</span><span class="grow"></span>
        ${session.active && html`<a href=${`#/runs/${session.active}`}>This run</a>`}<a href=${`#/agents/${agentId}`}>Agent</a></header>
      <${Problem} error=${failure ?? error ?? session.error} />
      <${VirtualList} items=${items} draw=${draw} label="Messages" onTop=${() => session.older().catch(setFailure)}
        head=${items.length > 0 && !session.all ? html`<p class="note earlier" aria-busy=${session.loading ? "true" : undefined}>Earlier messages …</p>` : null}>
        ${session.ready && items.length === 0 && !session.sending && html`<${Empty} agent=${agent} />`}
        ${session.sending && html`<p class="note working" role="status">${session.lost ? "The connection was lost. Joining the stream again …" : "Working …"}</p>`}
        ${session.stopped && html`<${Stopped} stopped=${session.stopped} />`}
        ${!session.sending && usage && html`<p class="note usage">${count(usage.prompt_tokens)} tokens in, ${count(usage.completion_tokens)} out</p>`}
        <${Queue} session=${session} held=${held.length > 0} />
      <//>
      <${Composer} session=${session} busy=${session.sending} held=${held.length > 0} empty=${session.ready && items.length === 0} />
    </section></main>`;
}
