// A conversation with an agent: tokens as they come, tool calls as cards, a stop button, and a stream that is joined
// again after a reload, a lost connection or a restart of the server.
import { get, patch, post, query } from "../api.js";
import { follow } from "../follow.js";
import { count, shortId } from "../formats.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";
import { Problem, useLoaded } from "../parts/load.js";
import { Markdown, Plain } from "../parts/markdown.js";
import { ToolCard } from "../parts/tool_card.js";
import { Transcript } from "../transcript.js";
import { answerBody } from "./approvals.js";

const PAGE = 100;
const SUGGESTIONS = ["Call send_invoice with customer 'Ada' and amount 120", "remember that I like tea", "what do you know about me?"];
const IMAGE_LIMIT = 5_000_000;

const placeOf = (agentId, conversation) => (conversation ? `/conversations/${conversation}` : `/agents/${agentId}`);

function Item({ item, decide }) {
  switch (item.kind) {
    case "user":
      return html`<div class="message user"><${Plain} text=${item.text} />${item.images?.map((url) => html`<img alt="sent image" src=${url} />`)}</div>`;
    case "assistant":
      return html`<div class="message assistant"><${Markdown} text=${item.text} /></div>`;
    case "reasoning":
      return html`<details class="reasoning"><summary>Reasoning</summary><${Plain} text=${item.text} /></details>`;
    case "tool":
      return html`<${ToolCard} item=${item} decide=${decide} />`;
    case "summary":
      return html`<details class="reasoning"><summary>Earlier messages were summarised</summary><${Plain} text=${item.text} /></details>`;
    case "error":
      return html`<p class="problem" role="alert">${item.text}</p>`;
    default:
      return null;
  }
}

function Conversations({ agentId, conversation }) {
  const { data, again } = useLoaded((abort) => get(`/conversations/${query({ agent_id: agentId, limit: 50 })}`, abort), [agentId, conversation]);
  const open = (made) => (location.hash = `#/agents/${agentId}/chat/${made.id}`);
  const start = async () => open(await post(`/conversations/${query({ agent_id: agentId })}`));
  const fork = async () => open(await post(`/conversations/${conversation ?? "default"}/fork${query({ agent_id: agentId })}`));
  const rename = async (one) => {
    const summary = prompt("Name of this conversation", one.summary ?? "");
    if (summary !== null) await patch(`/conversations/${one.id}`, { summary });
    again();
  };
  return html`<aside aria-label="Conversations"><h2>Conversations</h2><p class="row"><button onClick=${start}>New</button><button onClick=${fork}>Fork</button></p>
    <ul class="list"><li><a href=${`#/agents/${agentId}/chat`} aria-current=${conversation ? undefined : "page"}>Default</a></li>
      ${data?.map((one) => html`<li key=${one.id}><a href=${`#/agents/${agentId}/chat/${one.id}`} aria-current=${one.id === conversation ? "page" : undefined}>${one.summary || shortId(one.id)}</a>
        <button class="plain" aria-label="Rename ${one.summary || shortId(one.id)}" onClick=${() => rename(one)}>✎</button></li>`)}</ul></aside>`;
}

// What a stop left behind: which calls ran, which did not, and of which it is not known.
function Stopped({ why }) {
  const calls = why.calls ?? [];
  return html`<p class="note stopped" role="status">Stopped. ${calls.length === 0 ? "No tool was running." : calls.map((call) => `${call.name}: ${call.status}`).join(", ")} <a href=${`#/runs/${why.run_id}`}>Details</a></p>`;
}

function useChat(agentId, conversation, refresh) {
  const [, redraw] = useState(0);
  const state = useRef(null);
  if (state.current === null) state.current = { transcript: new Transcript(), active: null, sending: false, error: null, lost: false, why: null, oldest: null, all: false, queued: [] };
  const chat = state.current;
  const place = placeOf(agentId, conversation);
  const draw = () => redraw((number) => number + 1);
  // Tokens come faster than a screen shows them.
  const frame = useRef(0);
  const drawSoon = () => {
    if (!frame.current) frame.current = requestAnimationFrame(() => { frame.current = 0; draw(); });
  };

  const older = async () => {
    if (chat.all) return;
    const page = await get(`${place}/messages${query({ limit: PAGE, order: "desc", before: chat.oldest })}`);
    if (conversation) page.reverse(); // an agent's own history is listed oldest first, a conversation newest first
    chat.all = page.length === 0;
    chat.oldest = page[0]?.id ?? chat.oldest;
    chat.transcript.prepend(page);
    draw();
  };

  const attend = async (given, abort) => {
    chat.sending = true;
    chat.error = chat.why = null;
    draw();
    let runId = given.runId ?? null;
    try {
      runId = await follow({
        ...given,
        abort,
        lost: () => { chat.lost = true; drawSoon(); },
        take: (event) => {
          chat.lost = false;
          chat.active = event.run_id ?? chat.active;
          chat.transcript.fold(event);
          drawSoon();
        },
      });
    } catch (error) {
      if (error.name === "AbortError") return;
      chat.error = error;
    }
    runId = runId ?? chat.active;
    chat.lost = chat.sending = false;
    chat.active = null;
    if (runId) await settle(runId).catch((error) => { chat.error = error; });
    draw();
    refresh();
    const next = chat.queued.shift();
    if (next && !chat.error) await attend(next, abort);
  };

  const settle = async (runId) => {
    const stored = await get(`/runs/${runId}/messages?limit=1000&order=asc`);
    chat.transcript.settle(runId, stored);
    const run = await get(`/runs/${runId}`);
    if (run.status === "cancelled") chat.why = await get(`/runs/${runId}/why`);
  };

  const abort = useRef(null);
  useEffect(() => {
    abort.current = new AbortController();
    const { signal } = abort.current;
    const begin = async () => {
      await older();
      const active = (await get(`/runs/${query({ agent_id: agentId, active: true, limit: 20 })}`)).find((run) => (run.conversation_id ?? null) === (conversation ?? null));
      if (active && !signal.aborted) {
        chat.transcript.forget(active.id);
        chat.transcript.settle(active.id, (await get(`/runs/${active.id}/messages?limit=100&order=asc`)).filter(({ message_type }) => message_type === "user_message"));
        await attend({ runId: active.id }, signal);
      }
    };
    begin().catch((error) => { chat.error = error; draw(); });
    return () => abort.current.abort();
  }, []);

  const send = (messages) => {
    const body = { messages, stream_tokens: true, background: true, include_pings: true, streaming: true };
    const path = conversation ? `${place}/messages` : `${place}/messages/stream`;
    const request = { first: { path, body } };
    for (const message of messages) {
      if (message.role === "user") chat.transcript.fold({ message_type: "user_message", otid: message.otid, id: message.otid, content: message.content, date: new Date().toISOString() });
    }
    if (chat.sending) {
      chat.queued.push(request); // the server would wait too; this way the order is seen
      draw();
      return;
    }
    attend(request, abort.current.signal);
  };

  const stop = async () => {
    chat.queued = [];
    try {
      await post(conversation ? `/conversations/${conversation}/cancel` : `/agents/${agentId}/messages/cancel`, chat.active && !conversation ? { run_ids: [chat.active] } : {});
    } catch (error) {
      chat.error = error.status === 409 ? null : error; // it had just ended
    }
    draw();
  };
  return { chat, send, stop, older, redraw: draw };
}

function Composer({ send, stop, busy, waiting, empty }) {
  const [text, setText] = useState("");
  const [images, setImages] = useState([]);
  const submit = (event) => {
    event?.preventDefault();
    if (!text.trim() && !images.length) return;
    const content = images.length ? [...(text.trim() ? [{ type: "text", text }] : []), ...images] : text;
    send([{ role: "user", content, otid: crypto.randomUUID() }]);
    setText("");
    setImages([]);
  };
  const pick = async (event) => {
    const read = [...event.target.files].filter(({ size }) => size <= IMAGE_LIMIT).map((file) => new Promise((resolve) => {
      const reader = new FileReader();
      reader.onload = () => resolve({ type: "image", source: { type: "base64", media_type: file.type, data: reader.result.split(",")[1] } });
      reader.readAsDataURL(file);
    }));
    setImages(await Promise.all(read));
    event.target.value = "";
  };
  return html`${empty && html`<p class="suggestions">Try: ${SUGGESTIONS.map((one) => html`<button class="plain" onClick=${() => setText(one)}>${one}</button>`)}</p>`}
    <form class="composer" onSubmit=${submit}>
      <textarea id="composer" rows="2" aria-label="Message" placeholder=${waiting ? "Decide about the call above, or write why not" : busy ? "Sent when the run has ended" : "Message"} value=${text} autofocus
        onInput=${(event) => setText(event.target.value)} onKeyDown=${(event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && submit(event)}></textarea>
      <label class="button">Image<input type="file" accept="image/*" multiple class="unseen" onChange=${pick} /></label>
      ${images.length > 0 && html`<span class="note">${images.length} image(s)</span>`}
      <button class="primary" type="submit">Send</button>
      ${busy && html`<button class="danger" type="button" onClick=${stop}>Stop</button>`}
    </form>`;
}

export function Chat({ parts: [agentId, conversation], refresh }) {
  const { data: agent, error } = useLoaded((abort) => get(`/agents/${agentId}`, abort), [agentId]);
  const { chat, send, stop, older, redraw } = useChat(agentId, conversation, refresh);
  const list = useRef(null);
  const follows = useRef(true);
  const items = chat.transcript.items.filter(({ kind }) => kind !== "system");
  const fromEnd = useRef(null); // where the reader was before earlier messages were put above
  useLayoutEffect(() => {
    if (fromEnd.current !== null && !chat.loading) {
      list.current.scrollTop = list.current.scrollHeight - fromEnd.current;
      fromEnd.current = null;
    } else if (follows.current) list.current.scrollTop = list.current.scrollHeight;
  });
  const readOlder = async () => {
    chat.loading = true;
    fromEnd.current = list.current.scrollHeight - list.current.scrollTop;
    await older();
    chat.loading = false;
    redraw();
  };
  const scrolled = () => {
    const { scrollTop, scrollHeight, clientHeight } = list.current;
    follows.current = scrollHeight - scrollTop - clientHeight < 80;
    if (scrollTop < 200 && !chat.all && !chat.loading && items.length) readOlder();
  };
  const held = items.filter((item) => item.kind === "tool" && item.state === "held");
  const decide = (item) => async (decision) => send(answerBody(held.filter(({ runId }) => runId === item.runId).map(({ callId }) => ({ tool_call_id: callId })), decision).messages);
  return html`<main id="main" tabindex="-1" class="chat">
    <${Conversations} agentId=${agentId} conversation=${conversation} />
    <section class="thread">
      <header class="row"><h1>${agent?.name ?? "…"}</h1><a href=${`#/agents/${agentId}`}>Details</a><span class="note">${agent?.model ?? ""}</span>
        ${chat.active && html`<a class="note" href=${`#/runs/${chat.active}`}>run</a>`}</header>
      <${Problem} error=${error ?? chat.error} />
      <div class="messages" ref=${list} onScroll=${scrolled} role="log" aria-label="Messages" tabindex="0">
        ${!chat.all && items.length > 0 && html`<button class="plain" onClick=${readOlder}>Earlier messages</button>`}
        ${items.map((item) => html`<div class="item" key=${item.key}><${Item} item=${item} decide=${chat.sending ? null : decide(item)} /></div>`)}
        ${chat.sending && html`<p class="note working" role="status">${chat.lost ? "The connection was lost. Joining the stream again …" : "Working …"}</p>`}
        ${chat.why && html`<${Stopped} why=${chat.why} />`}
        ${!chat.sending && chat.transcript.usage && html`<p class="note">${count(chat.transcript.usage.prompt_tokens)} tokens in, ${count(chat.transcript.usage.completion_tokens)} out</p>`}
      </div>
      <${Composer} send=${send} stop=${stop} busy=${chat.sending} waiting=${held.length > 0} empty=${items.length === 0} />
    </section></main>`;
}
