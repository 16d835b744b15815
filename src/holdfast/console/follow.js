// Follows a run's stream to its end, across lost connections and restarts of the server.
import { ApiError, events } from "./api.js";

const PAUSES_MS = [250, 500, 1000, 2000, 4000];

// Calls `take` with each event. `first`, if given, is the request that starts the run; afterwards the stream is joined
// again after the last number that was seen.
export async function follow({ runId, after = 0, first, take, lost, abort }) {
  let seen = after;
  let failures = 0;
  let source = first ? () => events(first.path, first.body, abort) : null;
  for (;;) {
    try {
      const stream = source ? source() : events(`/runs/${runId}/stream`, { starting_after: seen, include_pings: true }, abort);
      for await (const { event, data } of stream) {
        if (event === "done") return runId;
        if (event === "error") break; // the server let go of this connection; the run itself goes on
        failures = 0;
        runId = data.run_id ?? runId;
        if (data.seq_id && data.seq_id <= seen) continue;
        seen = data.seq_id ?? seen;
        take(data);
      }
    } catch (error) {
      if (error.name === "AbortError") throw error;
      const again = error instanceof ApiError && (error.status === 0 || error.status >= 500);
      if (!again || (!runId && source && error.status !== 0)) throw error;
      if (!runId) throw error; // whether it was accepted is not known: whoever sent it may send it again with its otid
    }
    source = null;
    lost?.(failures);
    await pause(PAUSES_MS[Math.min(failures, PAUSES_MS.length - 1)], abort);
    failures += 1;
  }
}

function pause(ms, abort) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    abort?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    });
  });
}
