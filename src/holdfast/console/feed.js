// What the server says has changed (GET /v1/events/). Views read again what concerns them; while there is no feed, they
// look every few seconds instead.
import { events, needsKey } from "./api.js";
import { signal } from "./html.js";

const PAUSES_MS = [250, 500, 1000, 2000];
// A browser has few connections to one server, for all its tabs together: a tab that nobody sees lets go of its own.
const UNSEEN_MS = 20000;
const listeners = new Set();

export const live = signal(false);

// Calls `listener` with each change, and with {type: "resync"} when everything has to be read again.
export function onChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell(event) {
  if (event.type === "hello" || event.type === "resync") {
    live.value = true;
    event = { type: "resync" };
  }
  for (const listener of [...listeners]) listener(event);
}

// Follows the feed until it is stopped; returns what stops it.
export function followFeed() {
  let connection = null;
  let stopped = false;
  let failures = 0;
  let timer = 0;
  const connect = async () => {
    connection = new AbortController();
    try {
      for await (const { data } of events("/events/", undefined, connection.signal)) {
        failures = 0;
        tell(data);
      }
    } catch (error) {
      if (error.name !== "AbortError" && error.status === undefined) throw error;
    } finally {
      connection = null;
      live.value = false;
    }
    if (stopped || document.hidden || needsKey.value) return;
    timer = setTimeout(connect, PAUSES_MS[Math.min(failures, PAUSES_MS.length - 1)]);
    failures += 1;
  };
  const look = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => connection?.abort(), UNSEEN_MS);
    else if (!connection) connect();
  };
  document.addEventListener("visibilitychange", look);
  look();
  return () => {
    stopped = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", look);
    connection?.abort();
  };
}
