// Data for a view: loaded when it is opened, again when asked, and every few seconds while the page is seen.
import { ApiError } from "../api.js";
import { html, useEffect, useState } from "../html.js";

// `everyMs` may be a function of what was loaded: 0 ends the looking.
export function useLoaded(load, inputs, everyMs = 0) {
  const [state, setState] = useState({ data: undefined, error: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    let pause = typeof everyMs === "function" ? 1000 : everyMs;
    const look = async () => {
      try {
        if (!document.hidden || pause === 0) {
          const data = await load(abort.signal);
          if (!abort.signal.aborted) setState({ data, error: null });
          if (typeof everyMs === "function") pause = everyMs(data);
        }
      } catch (error) {
        if (abort.signal.aborted || error.name === "AbortError") return;
        if (!(error instanceof ApiError)) throw error;
        setState((before) => ({ ...before, error }));
      }
      if (pause && !abort.signal.aborted) timer = setTimeout(look, pause);
    };
    look();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [...inputs, round]);
  return { ...state, again: () => setRound((number) => number + 1) };
}

export const Problem = ({ error }) => error && html`<p class="problem" role="alert">${error.message}</p>`;
export const Waiting = () => html`<p class="empty" aria-busy="true">Loading …</p>`;
