// The state of one thread in this tab: what was said, the run that is followed, and messages that wait for their turn.
import { get, post, query } from "./api.js";
import { follow } from "./follow.js";
import { useEffect, useRef, useState } from "./html.js";
import { Transcript, textOf } from "./transcript.js";

const PAGE = 100;
const RUN_PAGE = 1000;
const LOOK_MS = 3000; // for what others have said in this thread

export const placeOf = (agentId, conversation) => (conversation ? `/conversations/${conversation}` : `/agents/${agentId}`);

async function messagesOfRun(runId) {
  const found = [];
  for (;;) {
    const page = await get(`/runs/${runId}/messages${query({ limit: RUN_PAGE, order: "asc", after: found.at(-1)?.id })}`);
    found.push(...page);
    if (page.length < RUN_PAGE) return found;
  }
}

// One stored message shows as several, which keep their order.
export function oldestFirst(page) {
  const rows = new Map();
  for (const message of page) rows.set(message.id, [...(rows.get(message.id) ?? []), message]);
  return [...rows.values()].reverse().flat();
}

// Messages that were written during a run outlive a reload of the tab.
function keptQueue(place) {
  const name = `holdfast-queue-${place}`;
  return {
    read: () => JSON.parse(sessionStorage.getItem(name) ?? "[]"),
    write: (queue) => {
      try {
        if (queue.length) sessionStorage.setItem(name, JSON.stringify(queue));
        else sessionStorage.removeItem(name);
      } catch {
        // Images may be more than the storage takes. They are still sent, unless the tab is reloaded before.
      }
    },
  };
}

export const heldCalls = (transcript) => transcript.items.filter((item) => item.kind === "tool" && item.state === "held");

class Session {
  constructor(agentId, conversation, draw, refresh) {
    Object.assign(this, { agentId, conversation, draw, refresh });
    this.place = placeOf(agentId, conversation);
    this.kept = keptQueue(this.place);
    this.transcript = new Transcript();
    this.choices = new Map(); // of held calls that are decided here but not sent, because others of their run are not
    this.active = this.error = this.stopped = this.oldest = null;
    this.sending = this.lost = this.all = this.loading = this.paused = this.ready = this.stopAsked = false;
    this.queue = this.kept.read();
    this.abort = new AbortController();
    this.frame = 0;
  }

  // Tokens come faster than a screen shows them.
  drawSoon() {
    if (!this.frame) this.frame = requestAnimationFrame(() => { this.frame = 0; this.draw(); });
  }

  async begin() {
    try {
      await this.older();
      this.ready = true;
      await this.join();
      await this.sendNext();
    } catch (error) {
      if (error.name !== "AbortError") this.error = error;
    }
    this.draw();
  }

  end() {
    this.abort.abort();
    cancelAnimationFrame(this.frame);
  }

  // Oldest first: the newest messages, or those before the message `cursor`.
  async page(limit, cursor) {
    // An agent's own history is listed oldest first, and its cursors are points in time; a conversation is listed newest
    // first, and its cursors are places in the list.
    const where = this.conversation ? { after: cursor } : { before: cursor };
    const page = await get(`${this.place}/messages${query({ limit, order: "desc", ...where })}`, this.abort.signal);
    return this.conversation ? oldestFirst(page) : page;
  }

  async older() {
    if (this.all || this.loading) return;
    this.loading = true;
    try {
      const page = await this.page(PAGE, this.oldest);
      this.all = page.length === 0;
      this.oldest = page[0]?.id ?? this.oldest;
      this.transcript.prepend(page);
    } finally {
      this.loading = false;
    }
    this.draw();
  }

  // Follows the run that is active in this thread, if there is one. A message that was sent from here meanwhile is
  // followed already: its pieces would be shown twice.
  async join() {
    const runs = await get(`/runs/${query({ agent_id: this.agentId, active: true, limit: 20 })}`, this.abort.signal);
    const active = runs.find((run) => (run.conversation_id ?? null) === (this.conversation ?? null));
    if (!active || this.sending) return;
    const said = (await get(`/runs/${active.id}/messages?limit=100&order=asc`, this.abort.signal)).filter(({ message_type }) => message_type === "user_message");
    if (this.sending) return;
    this.transcript.settle(active.id, said);
    await this.attend({ runId: active.id });
  }

  // Another tab, a program or the inbox may have said something.
  async look() {
    if (this.sending || !this.ready || document.hidden) return;
    const [newest] = await this.page(1);
    if (!newest || this.sending || this.transcript.hasMessage(newest.id)) return;
    const page = await this.page(PAGE);
    if (this.sending) return;
    this.transcript.append(page);
    this.draw();
    await this.join();
    await this.sendNext();
  }

  async attend(given) {
    this.sending = true;
    this.stopAsked = false;
    this.error = this.stopped = null;
    this.draw();
    let runId = given.runId ?? null;
    try {
      runId = await follow({
        ...given,
        abort: this.abort.signal,
        lost: () => { this.lost = true; this.drawSoon(); },
        take: (event) => {
          this.lost = false;
          this.active = event.run_id ?? this.active;
          if (this.stopAsked && this.active) this.stop();
          this.transcript.fold(event);
          this.drawSoon();
        },
      });
    } catch (error) {
      if (error.name === "AbortError") return;
      this.error = error;
    }
    runId = runId ?? this.active;
    if (runId) await this.settle(runId).catch((error) => { this.error = error; });
    this.lost = this.sending = false;
    this.active = null;
    this.draw();
    this.refresh();
  }

  async settle(runId) {
    this.transcript.settle(runId, await messagesOfRun(runId));
    const run = await get(`/runs/${runId}`);
    if (run.status === "cancelled") this.stopped = { runId, ...this.transcript.outcomes(runId) };
  }

  get mustWait() {
    return this.sending || heldCalls(this.transcript).length > 0;
  }

  // A message is sent now, or waits until the thread is free: the server would refuse it before.
  async say(content) {
    const message = { role: "user", content, otid: crypto.randomUUID() };
    if (this.mustWait || this.queue.length) {
      this.queue.push(message);
      this.kept.write(this.queue);
      return this.draw();
    }
    await this.send([message]);
    await this.sendNext();
  }

  async sendNext() {
    while (this.queue.length && !this.mustWait && !this.paused && !this.error && !this.abort.signal.aborted) {
      const next = this.queue.shift();
      const sent = this.send([next]); // it is in the transcript before it leaves the queue for good
      this.kept.write(this.queue);
      await sent;
    }
  }

  dropQueued(otid) {
    this.queue = this.queue.filter((one) => one.otid !== otid);
    this.kept.write(this.queue);
    if (!this.queue.length) this.paused = false;
    this.draw();
  }

  async resumeQueue() {
    this.paused = false;
    this.error = null;
    await this.sendNext();
    this.draw();
  }

  send(messages) {
    const body = { messages, stream_tokens: true, background: true, include_pings: true, streaming: true };
    const path = this.conversation ? `${this.place}/messages` : `${this.place}/messages/stream`;
    for (const message of messages) {
      if (message.role === "user") this.transcript.fold({ message_type: "user_message", otid: message.otid, id: message.otid, content: message.content, date: new Date().toISOString() });
    }
    return this.attend({ first: { path, body } });
  }

  // All calls of a request are answered together, so decisions are kept until the last one is made.
  async decide(item, decision) {
    this.choices.set(item.callId, decision);
    const together = heldCalls(this.transcript).filter(({ runId }) => runId === item.runId);
    if (together.every(({ callId }) => this.choices.has(callId))) {
      const approvals = together.map(({ callId }) => approvalOf(callId, this.choices.get(callId)));
      for (const { callId } of together) this.choices.delete(callId);
      this.transcript.append([{ message_type: "approval_response_message", approvals }]); // the stream does not repeat it
      await this.send([{ type: "approval", approvals }]);
      await this.sendNext();
    }
    this.draw();
  }

  undecide(callId) {
    this.choices.delete(callId);
    this.draw();
  }

  async stop() {
    this.paused = this.queue.length > 0;
    this.stopAsked = !this.active; // it may overtake its message: then the run is stopped as soon as it is known
    this.draw();
    try {
      await post(this.conversation ? `/conversations/${this.conversation}/cancel` : `/agents/${this.agentId}/messages/cancel`, this.active && !this.conversation ? { run_ids: [this.active] } : {});
    } catch (error) {
      this.error = error.status === 409 ? null : error; // it had just ended, or has not begun
    }
    this.draw();
  }
}

export function approvalOf(callId, decision) {
  return decision.answer !== undefined
    ? { type: "tool", tool_call_id: callId, tool_return: decision.answer, status: decision.status ?? "success" }
    : { type: "approval", tool_call_id: callId, approve: decision.approve, reason: decision.reason };
}

export const queuedText = (message) => textOf(message.content) || "an image";

export function useChat(agentId, conversation, refresh) {
  const [, redraw] = useState(0);
  const state = useRef(null);
  if (state.current === null) state.current = new Session(agentId, conversation, () => redraw((number) => number + 1), refresh);
  useEffect(() => {
    const session = state.current;
    session.begin();
    const timer = setInterval(() => session.look().catch(() => {}), LOOK_MS); // the next look may succeed
    return () => {
      clearInterval(timer);
      session.end();
    };
  }, []);
  return state.current;
}
