// Folds messages, whole or in pieces, into what a chat shows. Pure: no I/O, no DOM.
//
// An item is {key, kind, messageId, runId, date, …}: user, assistant, reasoning and system have `text` and `images`; a
// tool has `name`, `args`, `state` (writing, running, held, approved, denied, success, error) and `result`.

const TEXTS = { assistant_message: "assistant", user_message: "user", system_message: "system", reasoning_message: "reasoning" };

// How the server begins the return of a call that a stop, a failure or a crash kept from ending (core/transitions.py).
export const NOT_RUN = "Error: the tool was not executed";
export const CUT_OFF = ["Error: the tool was stopped because", "Error: the server stopped while this tool was running"];

export function textOf(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return content == null ? "" : JSON.stringify(content);
  return content.filter((part) => part.type === "text").map((part) => part.text).join("\n");
}

// {src} can be shown; {url} is elsewhere, and is not fetched.
export function imagesOf(content) {
  if (!Array.isArray(content)) return [];
  return content.filter((part) => part.type === "image").map(({ source }) =>
    source?.data ? { src: `data:${source.media_type};base64,${source.data}` } : source?.url ? { url: source.url } : null).filter(Boolean);
}

const callsOf = (message) => [message.tool_calls ?? message.tool_call ?? []].flat();

export class Transcript {
  #items = new Map();
  #messages = new Set();
  lastSeq = 0;
  runId = null;
  stopReason = null;
  usage = null;

  get items() {
    return [...this.#items.values()];
  }

  hasMessage(id) {
    return this.#messages.has(id);
  }

  // Stored messages, oldest first, put before everything that is there.
  prepend(messages) {
    const later = this.#items;
    this.#items = new Map();
    for (const message of messages) this.#add(message, false);
    for (const [key, item] of later) this.#items.set(key, { ...this.#items.get(key), ...item });
  }

  // Stored messages, oldest first, of which some may be there.
  append(messages) {
    for (const message of messages) this.#add(message, false);
  }

  // What is stored of a run replaces what was streamed of it.
  settle(runId, messages) {
    this.forget(runId);
    for (const message of messages) this.#add(message, false);
  }

  forget(runId) {
    for (const [key, item] of this.#items) if (item.runId === runId) this.#items.delete(key);
  }

  // The calls of a run by what became of them: {ran, notRun, unknown}, names of tools.
  outcomes(runId) {
    const found = { ran: [], notRun: [], unknown: [], saidSomething: false };
    for (const item of this.#items.values()) {
      if (item.runId !== runId) continue;
      if (item.kind === "assistant" || item.kind === "reasoning") found.saidSomething = true;
      if (item.kind !== "tool") continue;
      const text = item.result ?? "";
      if (CUT_OFF.some((start) => text.startsWith(start))) found.unknown.push(item.name);
      else if (item.result === undefined || item.denied || text.startsWith(NOT_RUN)) found.notRun.push(item.name);
      else found.ran.push(item.name);
    }
    return found;
  }

  // One event of a stream: a piece of a message, or a fact about the run.
  fold(event) {
    if (event.seq_id) this.lastSeq = event.seq_id;
    if (event.run_id) this.runId = event.run_id;
    switch (event.message_type) {
      case "ping":
        return;
      case "stop_reason":
        this.stopReason = event.stop_reason;
        return;
      case "usage_statistics":
        this.usage = event;
        return;
      default:
        this.#add(event, true);
    }
  }

  #add(message, streamed) {
    const type = message.message_type;
    if (message.id) this.#messages.add(message.id);
    if (type in TEXTS) this.#addText(message, TEXTS[type], streamed);
    else if (type === "tool_call_message") this.#addCalls(message, streamed ? "writing" : "running", streamed);
    else if (type === "approval_request_message") this.#addCalls(message, "held", streamed);
    else if (type === "tool_return_message") this.#addReturns(message);
    else if (type === "approval_response_message") this.#addDecisions(message);
    else if (type === "summary_message") this.#put(message, "summary", { text: message.summary ?? textOf(message.content) });
    else if (type === "hidden_reasoning_message") this.#put(message, "reasoning", { text: "The model's reasoning is hidden." });
    else if (type === "error_message" || type === "error") this.#put(message, "error", { text: message.message ?? message.detail ?? "The run failed." });
    else if (type === "event_message") this.#addEvent(message);
  }

  #put(message, kind, fields) {
    const key = message.otid ?? `${message.id}-${kind}`;
    this.#items.set(key, { key, kind, messageId: message.id, runId: message.run_id, stepId: message.step_id, date: message.date, ...fields });
  }

  #addText(message, kind, streamed) {
    const written = kind === "reasoning" ? message.reasoning : textOf(message.content);
    const key = message.otid ?? `${message.id}-${kind}`;
    const before = streamed ? (this.#items.get(key)?.text ?? "") : "";
    this.#put(message, kind, { text: before + written, images: imagesOf(message.content) });
  }

  // A try that failed: what it had said is void, and another follows.
  #addEvent(message) {
    if (message.event_type !== "retry") return;
    const { attempt, max_attempts: most, message: why, retry_in_ms: pause, abandoned_message_ids: gone } = message.event_data ?? {};
    for (const [key, item] of this.#items) if (gone?.includes(item.messageId)) this.#items.delete(key);
    this.#put(message, "retry", { text: `Try ${attempt} of ${most} follows${pause ? ` in ${(pause / 1000).toFixed(1)} s` : ""}: ${why}` });
  }

  #addCalls(message, state, streamed) {
    for (const call of callsOf(message)) {
      if (!call.tool_call_id) continue;
      const before = this.#items.get(call.tool_call_id);
      const args = streamed ? (before?.args ?? "") + (call.arguments ?? "") : (call.arguments ?? "");
      this.#items.set(call.tool_call_id, {
        ...before,
        key: call.tool_call_id,
        kind: "tool",
        callId: call.tool_call_id,
        messageId: message.id,
        runId: message.run_id,
        stepId: message.step_id,
        date: message.date,
        name: call.name || before?.name,
        args,
        state: before?.result !== undefined ? before.state : state,
      });
    }
  }

  #addReturns(message) {
    const returns = message.tool_returns?.length ? message.tool_returns : [message];
    for (const one of returns) {
      const before = this.#items.get(one.tool_call_id) ?? { key: one.tool_call_id, kind: "tool", callId: one.tool_call_id, name: message.name, args: "" };
      this.#items.set(one.tool_call_id, {
        ...before,
        runId: before.runId ?? message.run_id,
        returnedBy: message.run_id,
        state: before.denied ? "denied" : (one.status ?? "success"),
        result: textOf(one.tool_return),
        images: imagesOf(one.tool_return),
        stdout: one.stdout?.join("\n"),
        stderr: one.stderr?.join("\n"),
      });
    }
  }

  #addDecisions(message) {
    for (const decision of message.approvals ?? []) {
      const before = this.#items.get(decision.tool_call_id);
      if (!before) continue;
      const denied = decision.type !== "tool" && !decision.approve;
      const state = denied ? "denied" : before.result === undefined ? "approved" : before.state;
      this.#items.set(decision.tool_call_id, { ...before, state, denied, reason: decision.reason });
    }
  }
}
