// The model of an agent and its settings: those that the API shows for this model.
import { patch } from "../api.js";
import { html, useState } from "../html.js";
import { SchemaForm } from "./schema_form.js";

const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh"];

// A schema of one level. Settings that are objects on the wire have their fields under the name `object.field`.
export function settingsSchema(settings, window) {
  const properties = {
    temperature: { type: "number", minimum: 0, maximum: 2, description: "0 is the most predictable; the model's own if empty." },
    max_output_tokens: { type: "integer", minimum: 1, description: "How long one reply may be; the model's own limit if empty." },
    context_window_limit: { type: "integer", minimum: 1, description: `Tokens that the agent may fill before earlier messages are summarised; now ${window.toLocaleString("en")}.` },
    parallel_tool_calls: { type: "boolean", description: "Whether one reply may ask for several calls." },
  };
  if ("reasoning" in settings) properties["reasoning.reasoning_effort"] = { type: "string", enum: EFFORTS, description: "How much it thinks before it answers." };
  if ("thinking" in settings) {
    properties["thinking.type"] = { type: "string", enum: ["enabled", "disabled"], description: "Whether it thinks before it answers." };
    properties["thinking.budget_tokens"] = { type: "integer", minimum: 0, description: "How many tokens it may think for." };
  }
  if ("thinking_config" in settings) {
    properties["thinking_config.include_thoughts"] = { type: "boolean" };
    properties["thinking_config.thinking_budget"] = { type: "integer", minimum: -1 };
  }
  if ("effort" in settings) properties.effort = { type: "string", enum: ["low", "medium", "high", "xhigh", "max"] };
  if ("verbosity" in settings) properties.verbosity = { type: "string", enum: ["low", "medium", "high"] };
  if ("strict" in settings) properties.strict = { type: "boolean", description: "Whether arguments of calls must follow their schema exactly." };
  return { properties };
}

export function flat(settings) {
  return Object.fromEntries(Object.entries(settings).flatMap(([name, value]) =>
    value && typeof value === "object" && ["reasoning", "thinking", "thinking_config"].includes(name) ? Object.entries(value).map(([inner, one]) => [`${name}.${inner}`, one]) : [[name, value]]));
}

// What is sent: every setting of the form, null for those that are empty.
export function nested(schema, values) {
  const sent = {};
  for (const name of Object.keys(schema.properties)) {
    const value = values[name] ?? null;
    const [outer, inner] = name.split(".");
    if (inner) sent[outer] = { ...sent[outer], [inner]: value };
    else sent[outer] = value;
  }
  return sent;
}

export function ModelForm({ agent, models, act }) {
  const [saved, setSaved] = useState(null); // {number, lost}: how often, and what the model did not take
  const window = agent.llm_config.context_window;
  const schema = settingsSchema(agent.model_settings, window);
  const save = async (values) => {
    const { context_window_limit, ...settings } = nested(schema, values);
    for (const [name, value] of Object.entries(settings)) if (value && typeof value === "object" && Object.values(value).every((one) => one === null)) settings[name] = null;
    const body = { model_settings: { provider_type: agent.model_settings.provider_type, ...settings } };
    if (context_window_limit && context_window_limit !== window) body.context_window_limit = context_window_limit;
    const done = await act(async () => {
      const kept = flat((await patch(`/agents/${agent.id}`, body)).model_settings);
      const lost = Object.keys(values).filter((name) => name !== "context_window_limit" && kept[name] !== values[name]);
      setSaved((before) => ({ number: (before?.number ?? 0) + 1, lost }));
    });
    if (!done) setSaved(null);
  };
  const handles = [...new Set([agent.model, ...models.map(({ handle }) => handle)])];
  return html`<label>Model<select value=${agent.model} onChange=${(event) => act(() => patch(`/agents/${agent.id}`, { model: event.target.value }))}>
      ${handles.map((handle) => html`<option value=${handle}>${handle}</option>`)}</select></label>
    <details class="settings"><summary>Settings</summary>
      <${SchemaForm} key=${agent.model + JSON.stringify(agent.model_settings) + saved?.number} schema=${schema} initial=${{ ...flat(agent.model_settings), context_window_limit: window }} action="Save settings" submit=${save} />
    </details>${saved && html`<p class="note" role="status">Saved. They hold from the next run on.${saved.lost.length > 0 && ` This model does not take: ${saved.lost.join(", ")}.`}</p>`}`;
}
