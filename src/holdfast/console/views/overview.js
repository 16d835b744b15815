// What the server has been doing: runs by state over time, tokens and cost, errors, slow tools and runs, providers, the
// queue and its workers. All figures are the server's own (GET /v1/statistics/).
import { get, query } from "../api.js";
import { ago, count, duration, money, shortId } from "../formats.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { Problem, useLoaded, Waiting } from "../parts/load.js";
import uPlot from "../vendor/uplot.mjs";

const HOUR_MS = 3600000;
// How far back, and how wide a bar is, in seconds.
const RANGES = { hour: [HOUR_MS, 60], day: [24 * HOUR_MS, 1800], week: [168 * HOUR_MS, 10800], month: [720 * HOUR_MS, 86400] };
const RANGE = "holdfast-range";
const GAP_MS = 3000; // between two readings, however much changes
const ACTIVE = "active";
const STATES = [["completed", "--good"], ["failed", "--bad"], ["cancelled", "--muted"], [ACTIVE, "--wait"]];

const ofState = (runs, state) => (state === ACTIVE ? runs.created + runs.running : runs[state]);
const all = (runs) => runs.created + runs.running + runs.completed + runs.failed + runs.cancelled;

// For uPlot: times in seconds, then one series for each state on top of those before it, the topmost first.
export function stacked(buckets) {
  const below = buckets.map(() => 0);
  const series = STATES.map(([state]) => buckets.map(({ runs }, place) => (below[place] += ofState(runs, state))));
  return [buckets.map(({ at }) => Date.parse(at) / 1000), ...series.reverse()];
}

function useTheme() {
  const [dark, setDark] = useState(matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setDark(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return dark;
}

function Chart({ found }) {
  const place = useRef(null);
  const drawn = useRef(null);
  const dark = useTheme();
  const { buckets, bucket_s } = found;
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    const bars = uPlot.paths.bars({ size: [0.8, 40], align: 1 });
    const series = [...STATES].reverse().map(([state, name]) => ({
      label: state, fill: colour(name), stroke: colour(name), width: 0, paths: bars, points: { show: false },
      value: (_, __, ___, place) => (place == null ? "" : count(ofState(drawn.current.buckets[place].runs, state))),
    }));
    const first = Date.parse(buckets[0].at) / 1000;
    const chart = new uPlot({
      width: place.current.clientWidth, height: 200, cursor: { drag: { x: false, y: false }, points: { show: false } }, legend: { live: true },
      scales: { x: { range: [first, Date.parse(buckets.at(-1).at) / 1000 + bucket_s] }, y: { range: (_, __, most) => [0, Math.max(1, most * 1.08)] } },
      axes: [{ ...axis, grid: { show: false } }, { ...axis, size: 46, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000, 100000] }],
      series: [{ label: "from" }, ...series],
    }, stacked(buckets), place.current);
    drawn.current = { chart, buckets };
    const watching = new ResizeObserver(() => place.current && chart.setSize({ width: place.current.clientWidth, height: 200 }));
    watching.observe(place.current);
    return () => {
      watching.disconnect();
      chart.destroy();
    };
  }, [dark, bucket_s, buckets[0].at, buckets.length]);
  useEffect(() => {
    drawn.current.buckets = buckets;
    drawn.current.chart.setData(stacked(buckets), false);
    drawn.current.chart.redraw();
  }, [buckets]);
  const told = STATES.map(([state]) => `${ofState(found.totals, state)} ${state}`).join(", ");
  return html`<div class="chart" ref=${place} role="img" aria-label=${`Runs by state over time: ${told}`}></div>`;
}

const Figure = ({ name, label, value, note, warn }) => html`<div class="tile ${warn ? "warn" : ""}"><dt>${label}</dt>
  <dd><b data-figure=${name}>${value}</b>${note && html` <span class="note">${note}</span>`}</dd></div>`;

function Figures({ found }) {
  const { totals, usage, queue, workers } = found;
  const waited = queue.waiting ? `the oldest for ${duration(queue.oldest_s * 1e9)}` : "";
  return html`<dl class="tiles">
    <${Figure} name="runs" label="Runs" value=${count(all(totals))} />
    <${Figure} name="failed" label="Failed" value=${count(totals.failed)} warn=${totals.failed > 0} note=${all(totals) ? `${((100 * totals.failed) / all(totals)).toFixed(1)} %` : ""} />
    <${Figure} name="active" label="Active now" value=${count(queue.active)} note=${`${workers.length} ${workers.length === 1 ? "worker" : "workers"}`} />
    <${Figure} name="waiting" label="Waiting for a worker" value=${count(queue.waiting)} note=${waited} warn=${queue.oldest_s > 10} />
    <${Figure} name="held" label="Held for a decision" value=${count(queue.held)} />
    <${Figure} name="tokens-in" label="Tokens in" value=${count(usage.prompt_tokens)} note=${usage.cached_input_tokens ? `${count(usage.cached_input_tokens)} cached` : ""} />
    <${Figure} name="tokens-out" label="Tokens out" value=${count(usage.completion_tokens)} />
    <${Figure} name="cost" label="Cost" value=${money(usage.cost_usd)} note=${usage.unpriced_steps ? `${count(usage.unpriced_steps)} calls without a price` : ""} />
  </dl>`;
}

// A number, with a bar behind it that shows its share of the largest.
const Bar = ({ part, of, children }) => html`<div class="measure"><span class="measure-bar" style=${{ width: `${of ? Math.max(1, (100 * part) / of) : 0}%` }}></span><span>${children}</span></div>`;

function Section({ title, empty, children }) {
  return html`<section class="panel"><h2>${title}</h2>${empty ? html`<p class="empty">${empty}</p>` : html`<div class="scroll" tabindex="0" role="region" aria-label=${title}>${children}</div>`}</section>`;
}

function Days({ days }) {
  const most = Math.max(...days.map(({ usage }) => usage.prompt_tokens + usage.completion_tokens));
  return html`<${Section} title="Tokens and cost per day" empty=${days.length === 0 && "No model was called in this time."}>
    <table><thead><tr><th>Day (UTC)</th><th>Tokens in</th><th>cached</th><th>Tokens out</th><th>Cost</th></tr></thead>
      <tbody>${[...days].reverse().map(({ day, usage }) => html`<tr key=${day} data-day=${day}><th scope="row">${day}</th>
        <td><${Bar} part=${usage.prompt_tokens + usage.completion_tokens} of=${most}>${count(usage.prompt_tokens)}<//></td>
        <td>${count(usage.cached_input_tokens)}</td><td>${count(usage.completion_tokens)}</td><td>${money(usage.cost_usd)}</td></tr>`)}</tbody></table><//>`;
}

function Tools({ tools, steps }) {
  const most = Math.max(0, ...tools.map((tool) => tool.p95_ns ?? 0));
  return html`<${Section} title="Slowest tools" empty=${tools.length === 0 && "No tool was called in this time."}>
    <table><thead><tr><th>Tool</th><th>Calls</th><th>Failed</th><th>Half within</th><th>95 % within</th><th>Longest</th></tr></thead>
      <tbody>${tools.slice(0, 10).map((tool) => html`<tr key=${tool.name} data-tool=${tool.name}><th scope="row"><code>${tool.name}</code></th>
        <td>${count(tool.calls)}</td><td class=${tool.failures ? "bad" : ""}>${count(tool.failures)}</td><td>${duration(tool.p50_ns)}</td>
        <td><${Bar} part=${tool.p95_ns ?? 0} of=${most}>${duration(tool.p95_ns)}<//></td><td>${duration(tool.max_ns)}</td></tr>`)}</tbody></table>
    <p class="note">Of the newest ${count(steps)} steps that called tools. A step that called several is not timed.</p><//>`;
}

function Errors({ errors }) {
  const most = Math.max(0, ...errors.map(({ runs }) => runs));
  return html`<${Section} title="Errors" empty=${errors.length === 0 && "No run failed in this time."}>
    <table><thead><tr><th>Error</th><th>Runs</th><th>Last</th></tr></thead>
      <tbody>${errors.slice(0, 10).map((error) => html`<tr key=${error.error_type} data-error=${error.error_type}><th scope="row"><code>${error.error_type}</code></th>
        <td><${Bar} part=${error.runs} of=${most}>${count(error.runs)}<//></td><td>${ago(error.last_at)}</td></tr>`)}</tbody></table><//>`;
}

function Slowest({ runs }) {
  const most = Math.max(0, ...runs.map((run) => run.total_duration_ns));
  return html`<${Section} title="Slowest runs" empty=${runs.length === 0 && "No run ended in this time."}>
    <table><thead><tr><th>Run</th><th>Took</th><th>Ended with</th><th>Began</th></tr></thead>
      <tbody>${runs.map((run) => html`<tr key=${run.id}><th scope="row"><a href=${`#/runs/${run.id}`}>${shortId(run.id)}</a></th>
        <td><${Bar} part=${run.total_duration_ns} of=${most}>${duration(run.total_duration_ns)}<//></td><td>${run.stop_reason ?? run.status}</td><td>${ago(run.created_at)}</td></tr>`)}</tbody></table><//>`;
}

// Those that are configured, and those that were called: a provider may be gone since.
export function providerRows(configured, called) {
  const calls = new Map(called.map((one) => [one.name, one]));
  const names = new Set([...configured.map(({ name }) => name), ...calls.keys()]);
  return [...names].sort().map((name) => ({ name, listed: configured.find((one) => one.name === name), calls: calls.get(name) }));
}

function Providers({ configured, called }) {
  const state = ({ listed, calls }) => {
    if (calls?.status === "failing") return ["failed", `failing: ${calls.last_error_type}`];
    if (calls) return ["completed", "ok"];
    return listed?.status === "failed" ? ["failed", "cannot be asked"] : ["", "not called"];
  };
  return html`<${Section} title="Providers" empty=${configured.length + called.length === 0 && "No provider is configured."}>
    <table><thead><tr><th>Provider</th><th>State</th><th>Calls</th><th>Failed</th><th>Mean</th><th>Last call</th></tr></thead>
      <tbody>${providerRows(configured, called).map((row) => {
        const [kind, told] = state(row);
        const last = [row.calls?.last_success_at, row.calls?.last_failure_at].filter(Boolean).sort().at(-1);
        return html`<tr key=${row.name} data-provider=${row.name}><th scope="row">${row.name}</th>
          <td><span class="status ${kind}">${told}</span>${row.listed?.problem && html`<div class="note">${row.listed.problem}</div>`}</td>
          <td>${count(row.calls?.calls)}</td><td class=${row.calls?.failures ? "bad" : ""}>${count(row.calls?.failures)}</td><td>${duration(row.calls?.mean_ns)}</td><td>${last ? ago(last) : "–"}</td></tr>`;
      })}</tbody></table><//>`;
}

function Workers({ workers }) {
  return html`<${Section} title="Workers"><table><thead><tr><th>Worker</th><th>Runs that it drives now</th></tr></thead>
    <tbody>${workers.map(({ id, runs }) => html`<tr key=${id}><th scope="row"><code>${shortId(id)}</code></th><td>${count(runs)}</td></tr>`)}</tbody></table><//>`;
}

function RangeChooser({ range, choose }) {
  return html`<fieldset class="range"><legend class="unseen">Time</legend>${Object.keys(RANGES).map((name) => html`<label key=${name} class=${name === range ? "chosen" : ""}>
    <input class="unseen" type="radio" name="range" value=${name} checked=${name === range} onChange=${() => choose(name)} />${name}</label>`)}</fieldset>`;
}

export function Overview() {
  const kept = sessionStorage.getItem(RANGE);
  const [range, setRange] = useState(RANGES[kept] ? kept : "day");
  const { data, error } = useLoaded(async (abort) => {
    const [length, bucket_s] = RANGES[range];
    const [found, configured, health, ready] = await Promise.all([
      get(`/statistics/${query({ since: new Date(Date.now() - length).toISOString(), bucket_s })}`, abort),
      get("/models/providers", abort), get("/health/", abort), get("/ready/", abort).catch((problem) => ({ status: problem.message }))]);
    return { found, configured, health, ready };
  }, [range], 5000, ({ type, status }) => type === "run" || type === "approval" || status === "deleted", GAP_MS);
  const choose = (name) => {
    sessionStorage.setItem(RANGE, name);
    setRange(name);
  };
  const head = html`<header class="row"><h1>Overview</h1><${RangeChooser} range=${range} choose=${choose} /></header><${Problem} error=${error} />`;
  if (!data) return html`<main id="main" tabindex="-1">${head}${!error && html`<${Waiting} />`}</main>`;
  const { found, configured, health, ready } = data;
  return html`<main id="main" tabindex="-1">${head}
    <${Figures} found=${found} />
    <section class="panel"><h2>Runs by state</h2><${Chart} found=${found} /></section>
    <div class="panels">
      <${Days} days=${found.days} /><${Errors} errors=${found.errors} />
      <${Tools} tools=${found.tools} steps=${found.tool_steps} /><${Slowest} runs=${found.slowest_runs} />
      <${Providers} configured=${configured} called=${found.providers} /><${Workers} workers=${found.workers} />
    </div>
    <p class="note">Holdfast ${health.holdfast_version} · ready: ${ready.status ?? "yes"}</p>
  </main>`;
}
