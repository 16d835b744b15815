// The folders of an agent with their files: what becomes of an upload, and why if it failed.
import { get, patch, post } from "../api.js";
import { html, useState } from "../html.js";
import { Problem, useLoaded, Waiting } from "./load.js";

const UNDER_WAY = new Set(["pending", "parsing", "embedding"]);

async function load(agentId, abort) {
  const folders = await get(`/agents/${agentId}/folders`, abort);
  return Promise.all(folders.map(async (folder) => ({ ...folder, files: await get(`/folders/${folder.id}/files?limit=200`, abort) })));
}

function Progress({ file }) {
  const { processing_status: status, total_chunks: all, chunks_embedded: done } = file;
  if (status === "error") return html`<span class="status failed">failed</span> ${file.error_message}`;
  if (!UNDER_WAY.has(status)) return html`<span class="status completed">${status}</span>`;
  return html`<span class="status running">${status}</span> ${all > 0 && html`<progress max=${all} value=${done ?? 0} aria-label="Parts that are embedded"></progress>`}`;
}

export function Files({ agentId }) {
  const [failure, setFailure] = useState(null);
  const { data, error, again } = useLoaded((abort) => load(agentId, abort), [agentId], 3000, ({ type, agent_id }) => type === "file" || agent_id === agentId);
  const act = async (work) => {
    try {
      await work();
      setFailure(null);
    } catch (problem) {
      setFailure(problem);
    }
    again();
  };
  const add = () => act(async () => {
    const name = prompt("Name of the new folder");
    if (!name) return;
    const folder = await post("/folders/", { name });
    await patch(`/agents/${agentId}/folders/attach/${folder.id}`);
  });
  const upload = (folder, files) => act(async () => {
    for (const file of files) {
      const form = new FormData();
      form.append("file", file);
      await post(`/folders/${folder.id}/upload`, form);
    }
  });
  return html`<${Problem} error=${failure ?? error} />
    ${!data && !error && html`<${Waiting} />`}
    ${data?.length === 0 && html`<p class="empty">No folder is attached. The agent can read and search the files of its folders.</p>`}
    ${data?.map((folder) => html`<article class="folder" key=${folder.id} onDragOver=${(event) => event.preventDefault()}
        onDrop=${(event) => { event.preventDefault(); upload(folder, event.dataTransfer.files); }}>
      <h3>${folder.name}</h3>
      <table><tbody>${folder.files.map((file) => html`<tr key=${file.id}><td>${file.file_name ?? file.original_file_name}</td><td><${Progress} file=${file} /></td></tr>`)}</tbody></table>
      <label class="button">Upload, or drop files here<input type="file" multiple class="unseen" onChange=${(event) => upload(folder, event.target.files)} /></label>
      <button onClick=${() => act(() => patch(`/agents/${agentId}/folders/detach/${folder.id}`))}>Detach</button></article>`)}
    <p><button onClick=${add}>New folder</button></p>`;
}
