// Follows a run's stream to its end, across lost connections and restarts of the server.
import { ApiError, events } from "./api.js";

const PAUSES_MS = [250, 500, 1000, 2000, 4000];

// Calls `take` with each event, and returns the run's id at its end. `first`, if given, is the request that starts the
// run. It is sent again while the run's id is not known: its otid makes that the same message. Then the stream is joined
// after the last number that was seen.
export async function follow({ runId, first, take, lost, abort }) {
  let seen = 0;
  let failures = 0;
  for (;;) {
    const stream = runId ? events(`/runs/${runId}/stream`, { starting_after: seen, include_pings: true }, abort) : events(first.path, first.body, abort);
    try {
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
      const mayPass = error instanceof ApiError && (error.status === 0 || error.status >= 500);
      if (!mayPass) throw error;
    }
    lost();
    await pause(PAUSES_MS[Math.min(failures, PAUSES_MS.length - 1)], abort);
    failures += 1;
  }
}

function pause(ms, abort) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    };
    const timer = setTimeout(() => {
      abort.removeEventListener("abort", stop);
      resolve();
    }, ms);
    abort.addEventListener("abort", stop);
  });
}
