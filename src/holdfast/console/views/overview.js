// What the server has been doing: runs by state over time, tokens and cost, errors, slow tools, providers.
import { get, query } from "../api.js";
import { count, duration, money } from "../formats.js";
import { html, useEffect, useRef } from "../html.js";
import { Problem, useLoaded, Waiting } from "../parts/load.js";
import uPlot from "../vendor/uplot.mjs";

const RUNS = 500;
const STEPS = 500;
const BUCKETS = 30;

export function byState(runs, buckets = BUCKETS) {
  if (!runs.length) return null;
  const times = runs.map((run) => Date.parse(run.created_at) / 1000);
  const first = Math.min(...times);
  const width = Math.max(1, (Math.max(...times) - first) / (buckets - 1));
  const counts = { completed: Array(buckets).fill(0), failed: Array(buckets).fill(0), cancelled: Array(buckets).fill(0) };
  runs.forEach((run, place) => {
    const bucket = Math.floor((times[place] - first) / width);
    if (counts[run.status]) counts[run.status][bucket] += 1;
  });
  return [Array.from({ length: buckets }, (_, place) => first + place * width), counts.completed, counts.failed, counts.cancelled];
}

function Chart({ data }) {
  const place = useRef(null);
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const line = (label, name) => ({ label, stroke: colour(name), width: 2 });
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line") } };
    const chart = new uPlot({ width: place.current.clientWidth, height: 180, axes: [axis, axis],
      series: [{}, line("completed", "--good"), line("failed", "--bad"), line("cancelled", "--muted")] }, data, place.current);
    return () => chart.destroy();
  }, [data]);
  return html`<div class="chart" ref=${place} role="img" aria-label="Runs by state over time"></div>`;
}

function perDay(steps, runs) {
  const began = new Map(runs.map((run) => [run.id, run.created_at.slice(0, 10)]));
  const days = new Map();
  for (const step of steps) {
    const day = began.get(step.run_id) ?? "earlier";
    const sum = days.get(day) ?? { prompt: 0, completion: 0, cost: null };
    sum.prompt += step.prompt_tokens ?? 0;
    sum.completion += step.completion_tokens ?? 0;
    if (step.cost_usd != null) sum.cost = (sum.cost ?? 0) + step.cost_usd;
    days.set(day, sum);
  }
  return [...days].sort().reverse();
}

export function Overview() {
  const { data, error } = useLoaded(async (abort) => {
    const [runs, steps, providers, health, ready] = await Promise.all([
      get(`/runs/${query({ limit: RUNS })}`, abort), get(`/steps/${query({ limit: STEPS, order: "desc" })}`, abort),
      get("/models/providers", abort), get("/health/", abort), get("/ready/", abort).catch((problem) => ({ status: problem.message }))]);
    return { runs, steps, providers, health, ready };
  }, [], 5000);
  if (!data) return html`<main id="main" tabindex="-1">${error ? html`<${Problem} error=${error} />` : html`<${Waiting} />`}</main>`;
  const { runs, steps, providers, health, ready } = data;
  const states = {};
  for (const run of runs) states[run.status] = (states[run.status] ?? 0) + 1;
  const errors = {};
  for (const run of runs) if (run.status === "failed") errors[run.stop_reason ?? "error"] = (errors[run.stop_reason ?? "error"] ?? 0) + 1;
  const slowest = runs.filter((run) => run.total_duration_ns).sort((one, other) => other.total_duration_ns - one.total_duration_ns).slice(0, 5);
  const chart = byState(runs);
  return html`<main id="main" tabindex="-1"><h1>Overview</h1><${Problem} error=${error} />
    <p class="facts">Holdfast ${health.holdfast_version} · ready: ${ready.status ?? "yes"} · the last ${runs.length} runs: ${Object.entries(states).map(([state, number]) => `${number} ${state}`).join(", ") || "none"}</p>
    <h2>Runs over time</h2>${chart ? html`<${Chart} data=${chart} />` : html`<p class="empty">No runs yet.</p>`}
    <h2>Tokens and cost per day</h2><table><thead><tr><th>Day</th><th>Tokens in</th><th>Tokens out</th><th>Cost</th></tr></thead>
      <tbody>${perDay(steps, runs).map(([day, sum]) => html`<tr><td>${day}</td><td>${count(sum.prompt)}</td><td>${count(sum.completion)}</td><td>${money(sum.cost)}</td></tr>`)}</tbody></table>
    <h2>Failures</h2>${Object.keys(errors).length ? html`<ul>${Object.entries(errors).map(([reason, number]) => html`<li>${reason}: ${number}</li>`)}</ul>` : html`<p class="empty">None of them failed.</p>`}
    <h2>Slowest runs</h2><ul>${slowest.map((run) => html`<li><a href=${`#/runs/${run.id}`}>${duration(run.total_duration_ns)}</a> ${run.stop_reason}</li>`)}</ul>
    <h2>Providers</h2><table><tbody>${providers.map((provider) => html`<tr><td>${provider.name ?? provider.provider_name}</td><td>${provider.error ?? provider.status ?? "ok"}</td></tr>`)}</tbody></table>
  </main>`;
}
