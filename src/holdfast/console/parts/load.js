// Data for a view: loaded when it is opened, and again when asked or when a change concerns it. Without the feed of
// changes, every few seconds while the page is seen.
import { ApiError } from "../api.js";
import { live, onChange } from "../feed.js";
import { html, useEffect, useState } from "../html.js";

const FIRST_LOOK_MS = 1000; // again, when the first load has failed
const AGES_MS = 30000; // how often times such as "5 min ago" are told anew

// `everyMs` may be a function of what was loaded: 0 ends the looking. `concerns` says of a change whether it makes what
// was loaded old. Loads are at least `gapMs` apart.
export function useLoaded(load, inputs, everyMs = 0, concerns = null, gapMs = 250) {
  const [state, setState] = useState({ data: undefined, error: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    let loading = false;
    let stale = false;
    let nextAt = 0;
    let pauseMs = typeof everyMs === "function" ? FIRST_LOOK_MS : everyMs;
    const unseen = () => document.hidden && pauseMs > 0;
    const look = async () => {
      clearTimeout(timer);
      if (unseen()) return void (stale = true); // loaded when it is seen again
      loading = true;
      stale = false;
      try {
        const data = await load(abort.signal);
        if (!abort.signal.aborted) setState({ data, error: null });
        if (typeof everyMs === "function") pauseMs = everyMs(data);
      } catch (error) {
        if (abort.signal.aborted || error.name === "AbortError") return;
        if (!(error instanceof ApiError)) throw error;
        setState((before) => ({ ...before, error }));
      }
      loading = false;
      nextAt = performance.now() + gapMs;
      plan();
    };
    const plan = () => {
      clearTimeout(timer);
      if (loading || unseen() || abort.signal.aborted) return;
      if (stale) timer = setTimeout(look, Math.max(0, nextAt - performance.now()));
      else if (pauseMs && !(concerns && live.value)) timer = setTimeout(look, pauseMs);
    };
    const forget = !concerns ? () => {} : onChange((event) => {
      if (event.type !== "resync" && !concerns(event)) return;
      if (!stale) {
        stale = true;
        plan();
      }
    });
    const unsubscribe = live.subscribe(() => stale || plan());
    const ages = concerns ? setInterval(() => document.hidden || setState((before) => ({ ...before })), AGES_MS) : 0;
    document.addEventListener("visibilitychange", plan);
    look();
    return () => {
      abort.abort();
      document.removeEventListener("visibilitychange", plan);
      clearTimeout(timer);
      clearInterval(ages);
      forget();
      unsubscribe();
    };
  }, [...inputs, round]);
  return { ...state, again: () => setRound((number) => number + 1) };
}

export const Problem = ({ error }) => error && html`<p class="problem" role="alert">${error.message}</p>`;
export const Waiting = () => html`<p class="empty" aria-busy="true">Loading …</p>`;
