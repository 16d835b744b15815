// What a program does with the SDK of letta-code. Prints one JSON object per line.
import { createAgent, prompt, resumeSession } from "@letta-ai/letta-code-sdk";

const tell = (value) => console.log(JSON.stringify(value));

tell({ asked: await prompt("Hello there [[no_reasoning]]") });
const agentId = await createAgent({ persona: "I am brief." });
const session = resumeSession(agentId, { permissionMode: "bypassPermissions" });
for (const text of ["One [[no_reasoning]]", "Two [[no_reasoning]]"]) {
  await session.send(text);
  for await (const message of session.stream()) {
    if (message.type === "result") tell({ agentId, answered: message });
  }
}
session.close();
