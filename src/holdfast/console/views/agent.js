// One agent: context window, memory, tools, rules, model, archives, files, conversations, groups, secrets.
import { get, patch, query, remove } from "../api.js";
import { html, useState } from "../html.js";
import { Tools } from "../parts/agent_tools.js";
import { Archives } from "../parts/archives.js";
import { Blocks } from "../parts/blocks.js";
import { ContextBar } from "../parts/context_bar.js";
import { Conversations } from "../parts/conversations.js";
import { Files } from "../parts/files.js";
import { Groups } from "../parts/groups.js";
import { Problem, useLoaded, Waiting } from "../parts/load.js";
import { visible } from "../parts/text.js";
import { ModelForm } from "../parts/model_form.js";
import { Rules } from "../parts/rules.js";
import { Secrets } from "../parts/secrets.js";

async function download(agent) {
  const content = await get(`/agents/${agent.id}/export`);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(content, null, 2)], { type: "application/json" }));
  link.download = `${agent.name}.af`;
  link.click();
  URL.revokeObjectURL(link.href);
}

function Instructions({ agent, act }) {
  const [text, setText] = useState(agent.system);
  return html`<label><span class="unseen-label">Instructions</span><textarea rows="8" class="prose" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
    ${text !== agent.system && html`<div class="row tight"><button class="primary" onClick=${() => act(() => patch(`/agents/${agent.id}`, { system: text }))}>Save instructions</button><button onClick=${() => setText(agent.system)}>Undo</button></div>`}`;
}

const Section = ({ title, id, children }) => html`<section class="card" id=${id} aria-labelledby=${`${id}-title`}><h2 id=${`${id}-title`}>${title}</h2>${children}</section>`;

export function Agent({ parts: [id] }) {
  const [failure, setFailure] = useState(null);
  const { data, error, again } = useLoaded(async (abort) => {
    const [agent, context, tools, models] = await Promise.all([
      get(`/agents/${id}`, abort), get(`/agents/${id}/context`, abort), get(`/tools/${query({ limit: 200 })}`, abort), get("/models/", abort)]);
    return { agent, context, tools, models };
  }, [id]);
  if (!data) return html`<main id="main" tabindex="-1">${error ? html`<${Problem} error=${error} />` : html`<${Waiting} />`}</main>`;
  const { agent, context, tools, models } = data;
  const act = async (work) => {
    let problem = null;
    try {
      await work();
    } catch (error) {
      problem = error;
    }
    setFailure(problem);
    again();
    return problem === null;
  };
  const destroy = () => confirm(`Delete ${agent.name} with its messages and runs? This cannot be undone.`) && act(async () => {
    await remove(`/agents/${id}`);
    location.hash = "#/";
  });
  const rename = () => {
    const name = prompt("Name of this agent", agent.name);
    if (name) act(() => patch(`/agents/${id}`, { name }));
  };
  return html`<main id="main" tabindex="-1" class="wide">
    <header class="row page-head"><div><h1>${visible(agent.name)}</h1><p class="note">${agent.model} · ${agent.agent_type.replaceAll("_", " ")}${agent.description && ` · ${visible(agent.description)}`}</p></div><span class="grow"></span>
      <a class="button primary" href=${`#/agents/${id}/chat`}>Chat</a><button onClick=${rename}>Rename</button><button onClick=${() => act(() => download(agent))}>Export</button><button class="danger" onClick=${destroy}>Delete</button></header>
    <${Problem} error=${failure ?? error} />
    <div class="columns"><div>
      <${Section} id="context" title="Context window"><${ContextBar} context=${context} /><//>
      <${Section} id="memory" title="Memory blocks"><${Blocks} agent=${agent} act=${act} changed=${again} /><//>
      <${Section} id="tools" title="Tools"><${Tools} agent=${agent} all=${tools} act=${act} /><//>
      <${Section} id="rules" title="Tool rules"><${Rules} agent=${agent} act=${act} /><//>
      <${Section} id="instructions" title="Instructions"><${Instructions} key=${agent.system} agent=${agent} act=${act} /><//>
    </div><div>
      <${Section} id="model" title="Model"><${ModelForm} agent=${agent} models=${models} act=${act} /><//>
      <${Section} id="conversations" title="Conversations"><${Conversations} agentId=${id} brief=${true} /><//>
      <${Section} id="archival" title="Archival memory"><${Archives} agentId=${id} /><//>
      <${Section} id="files" title="Files"><${Files} agentId=${id} /><//>
      <${Section} id="groups" title="Groups"><${Groups} agent=${agent} act=${act} /><//>
      <${Section} id="secrets" title="Secrets"><${Secrets} agent=${agent} act=${act} /><//>
    </div></div>
  </main>`;
}
