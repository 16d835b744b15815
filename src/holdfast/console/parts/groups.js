// The groups that an agent leads or belongs to, its sleeptime agents among them.
import { get, patch } from "../api.js";
import { html } from "../html.js";
import { Problem, useLoaded } from "./load.js";
import { visible } from "./text.js";

const PATTERNS = { round_robin: "take turns", supervisor: "work for a supervisor", dynamic: "are called on by a manager", sleeptime: "look after memory between turns", voice_sleeptime: "look after memory between turns" };

async function load(agent, abort) {
  const groups = await get(`/agents/${agent.id}/groups`, abort);
  const led = [agent.managed_group, agent.multi_agent_group].filter((one) => one && !groups.some(({ id }) => id === one.id));
  const all = [...groups, ...led.filter((one, place) => led.findIndex(({ id }) => id === one.id) === place)];
  const ids = [...new Set(all.flatMap(({ agent_ids, manager_agent_id }) => [...agent_ids, manager_agent_id]).filter(Boolean))];
  const names = Object.fromEntries(await Promise.all(ids.map(async (id) => [id, (await get(`/agents/${id}?include=agent.tags`, abort).catch(() => ({ name: id }))).name])));
  return { all, names };
}

export function Groups({ agent, act }) {
  const { data, error } = useLoaded((abort) => load(agent, abort), [agent.id, agent.enable_sleeptime]);
  const link = (id) => html`<a href=${`#/agents/${id}`}>${visible(data.names[id] ?? id)}</a>`;
  return html`<${Problem} error=${error} />
    <label class="check"><input type="checkbox" checked=${agent.enable_sleeptime ?? false} onChange=${(event) => act(() => patch(`/agents/${agent.id}`, { enable_sleeptime: event.target.checked }))} /> a sleeptime agent looks after its memory</label>
    ${data?.all.length === 0 && html`<p class="empty">It belongs to no group.</p>`}
    <ul class="plain-list">${data?.all.map((group) => html`<li key=${group.id}><b>${visible(group.manager_type.replaceAll("_", " "))}</b>${group.description && ` · ${visible(group.description)}`}
      <p class="note">${group.agent_ids.map((id, place) => html`${place > 0 && ", "}${id === agent.id ? "this agent" : link(id)}`)} ${PATTERNS[group.manager_type] ?? ""}${group.manager_agent_id && html`; led by ${group.manager_agent_id === agent.id ? "this agent" : link(group.manager_agent_id)}`}${group.sleeptime_agent_frequency && `, every ${group.sleeptime_agent_frequency} turns`}.</p></li>`)}</ul>`;
}
