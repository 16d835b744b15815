// The public API, with the key that the user gave. Nothing here is known to the console alone.
import { signal } from "./html.js";

const STORED = "holdfast-key";

export const key = signal(sessionStorage.getItem(STORED) ?? "");
export const needsKey = signal(false);
export const MOST_APPROVALS = 100; // that are looked at

export function useKey(text) {
  sessionStorage.setItem(STORED, text);
  key.value = text;
  needsKey.value = false;
}

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(body) {
  const sent = { accept: "application/json" };
  if (key.value) sent.authorization = `Bearer ${key.value}`;
  if (body !== undefined && !(body instanceof FormData)) sent["content-type"] = "application/json";
  return sent;
}

async function send(method, path, body, abort) {
  let answer;
  try {
    answer = await fetch(`v1${path}`, {
      method,
      headers: headers(body),
      body: body === undefined || body instanceof FormData ? body : JSON.stringify(body),
      signal: abort,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached. It may be restarting.");
  }
  if (answer.status === 401) needsKey.value = true;
  if (!answer.ok) throw new ApiError(answer.status, await explanation(answer));
  return answer;
}

async function explanation(answer) {
  const text = await answer.text();
  try {
    const { detail, error } = JSON.parse(text);
    if (typeof detail === "string") return detail;
    return detail?.message ?? error?.message ?? text;
  } catch {
    return text || `The server answered ${answer.status}.`;
  }
}

export async function call(method, path, body, abort) {
  const answer = await send(method, path, body, abort);
  const text = await answer.text();
  return text && answer.headers.get("content-type")?.includes("json") ? JSON.parse(text) : text;
}

export const get = (path, abort) => call("GET", path, undefined, abort);
export const post = (path, body = {}, abort) => call("POST", path, body, abort);
export const patch = (path, body = {}) => call("PATCH", path, body);
export const remove = (path) => call("DELETE", path);

export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

// Server-sent events of a POST, or of a GET if there is no body: {event, data} for each, the data parsed.
export async function* events(path, body, abort) {
  const answer = await send(body === undefined ? "GET" : "POST", path, body, abort);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    let chunk;
    try {
      chunk = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The connection was lost.");
    }
    if (chunk.done) return;
    buffer += chunk.value;
    const blocks = buffer.split("\n\n");
    buffer = blocks.pop();
    for (const block of blocks) {
      const parsed = parse(block);
      if (parsed) yield parsed;
    }
  }
}

function parse(block) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  const text = data.join("\n");
  if (!text) return null;
  return text === "[DONE]" ? { event: "done" } : { event, data: JSON.parse(text) };
}
