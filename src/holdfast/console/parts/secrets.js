// The secrets of an agent: names are shown, values are only written.
import { patch } from "../api.js";
import { html, useState } from "../html.js";
import { visible } from "./text.js";

export function Secrets({ agent, act }) {
  const [name, setName] = useState("");
  const [value, setValue] = useState("");
  const kept = Object.fromEntries((agent.secrets ?? []).map(({ key, value: sealed }) => [key, sealed ?? ""]));
  const write = (secrets) => act(() => patch(`/agents/${agent.id}`, { secrets }));
  const save = async (event) => {
    event.preventDefault();
    if (await write({ ...kept, [name]: value })) {
      setName("");
      setValue("");
    }
  };
  const drop = (key) => write(Object.fromEntries(Object.entries(kept).filter(([other]) => other !== key)));
  return html`<p class="note">Tools read them from their environment. They are written here and never shown.</p>
    <ul class="plain-list secrets">${Object.keys(kept).map((key) => html`<li key=${key}><code>${visible(key)}</code> <span class="note">set</span> <button class="plain" aria-label=${`Remove ${key}`} onClick=${() => drop(key)}>Remove</button></li>`)}</ul>
    <form class="row" onSubmit=${save}><input aria-label="Name of a secret" placeholder="NAME" autocomplete="off" value=${name} onInput=${(event) => setName(event.target.value)} />
      <input type="password" autocomplete="off" aria-label="Its value" placeholder="value" value=${value} onInput=${(event) => setValue(event.target.value)} /><button disabled=${!name}>Save secret</button></form>`;
}
