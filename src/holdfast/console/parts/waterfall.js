// The steps of a run on one scale: model and tool time, tokens, cost, with retries and compactions marked.
import { count, duration, money } from "../formats.js";
import { html } from "../html.js";
import { visible } from "./text.js";

const MARKS = [[/a try failed|did not fit/, "retry"], [/summarised/, "compaction"]];

// Retries and compactions from the run's history, whose lines begin with a time: [{kind, at_ns, text}].
export function marksOf(history) {
  return history.flatMap((line) => {
    const [at, text] = line.split(/ {2}(.*)/s);
    const kind = MARKS.find(([pattern]) => pattern.test(text))?.[1];
    return kind ? [{ kind, at_ns: Date.parse(at) * 1e6, text, at }] : [];
  });
}

// Model and tool time of each step on one scale, in nanoseconds since the first step began.
export function spansOf(steps) {
  const timed = steps.filter((step) => step.metrics?.step_start_ns);
  if (!timed.length) return [];
  const begin = Math.min(...timed.map((step) => step.metrics.step_start_ns));
  return timed.map((step, number) => {
    const { step_start_ns, llm_request_start_ns, llm_request_ns, tool_execution_ns, step_ns } = step.metrics;
    const modelAt = (llm_request_start_ns ?? step_start_ns) - begin;
    return {
      id: step.id,
      label: `Step ${number + 1}`,
      begin,
      at: step_start_ns - begin,
      took: step_ns ?? 0,
      model: { at: modelAt, took: llm_request_ns ?? 0 },
      tool: { at: modelAt + (llm_request_ns ?? 0), took: tool_execution_ns ?? 0 },
      step,
    };
  });
}

const cached = (step) => (step.cached_input_tokens ? `${count(step.cached_input_tokens)}${step.prompt_tokens ? ` (${Math.round((100 * step.cached_input_tokens) / step.prompt_tokens)} %)` : ""}` : "–");

function Row({ span, marks, whole, fork }) {
  const { label, model, tool, step } = span;
  const place = ({ at, took }) => ({ left: `${(100 * at) / whole}%`, width: `${Math.max(0.5, (100 * took) / whole)}%` });
  return html`<tr>
    <th scope="row">${label} <span class="note">${step.model_handle}</span>${step.error_type && html` <span class="status failed">${step.error_type}</span>`}</th>
    <td class="wide"><div class="track"><span class="span model" style=${place(model)} title="Model: ${duration(model.took)}"></span>
      ${tool.took > 0 && html`<span class="span tools" style=${place(tool)} title="Tools: ${duration(tool.took)}"></span>`}
      ${marks.map((mark) => html`<span class="mark ${mark.kind}" style=${{ left: `${Math.min(99, Math.max(0, (100 * (mark.at_ns - span.begin)) / whole))}%` }} title=${mark.text}></span>`)}</div></td>
    <td class="number">${duration(model.took || null)}</td><td class="number">${duration(tool.took || null)}</td>
    <td class="number">${count(step.prompt_tokens)}</td><td class="number">${cached(step)}</td><td class="number">${count(step.completion_tokens)}</td><td class="number">${money(step.cost_usd)}</td>
    <td><button class="plain" onClick=${() => fork(step)}>Fork from here</button></td></tr>`;
}

export function Waterfall({ steps, history, fork }) {
  const spans = spansOf(steps);
  if (!spans.length) return html`<p class="empty">No step has ended yet.</p>`;
  const whole = Math.max(1, ...spans.map(({ at, took }) => at + took));
  const marks = marksOf(history);
  // A try that failed belongs to the last step that had begun by then.
  const rowOf = (mark) => spans.findLastIndex((span) => span.begin + span.at <= mark.at_ns + 1e6);
  return html`<div class="scroll"><table class="waterfall"><thead><tr><th>Step</th><th class="wide">Time, ${duration(whole)} in all</th><th class="number">Model</th><th class="number">Tools</th><th class="number">Tokens in</th><th class="number">Cached</th><th class="number">Out</th><th class="number">Cost</th><th></th></tr></thead>
    <tbody>${spans.map((span, number) => html`<${Row} key=${span.id} span=${span} whole=${whole} fork=${fork} marks=${marks.filter((mark) => Math.max(0, rowOf(mark)) === number)} />`)}</tbody></table></div>
    <p class="legend note"><span><i class="span model"></i>model</span><span><i class="span tools"></i>tools</span>${marks.some(({ kind }) => kind === "retry") && html`<span><i class="mark retry"></i>a try failed</span>`}${marks.some(({ kind }) => kind === "compaction") && html`<span><i class="mark compaction"></i>earlier messages were summarised</span>`}</p>
    ${marks.length > 0 && html`<ul class="plain-list marks">${marks.map((mark) => html`<li><i class="mark ${mark.kind}"></i> <span class="note">${new Date(mark.at).toLocaleTimeString()}</span> ${visible(mark.text)}</li>`)}</ul>`}`;
}
