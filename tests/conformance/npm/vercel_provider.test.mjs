// The provider for the Vercel AI SDK, which brings an 0.x client of its own.

import assert from "node:assert/strict";
import { after, test } from "node:test";

import { convertToAiSdkMessage, createLetta } from "@letta-ai/vercel-ai-sdk-provider";
import { generateText, streamText } from "ai";

import { ROLL } from "./tools.mjs";

const letta = createLetta({ baseUrl: process.env.HOLDFAST_URL, token: "none" });
const limit = { timeout: 60_000 };
const made = [];

const rollingAgent = async () => {
  const tool = await letta.client.tools.upsert({ sourceCode: ROLL });
  const agent = await letta.client.agents.create({ name: "vercel", includeBaseTools: false, tags: ["web"] });
  made.push(agent.id);
  const attached = await letta.client.agents.tools.attach(agent.id, tool.id);
  assert.deepEqual(attached.tools.map((each) => each.name), ["roll"]);
  return agent.id;
};

const asking = (id, prompt, options = {}) => ({
  model: letta(), prompt, tools: { roll: letta.tool("roll") }, providerOptions: { letta: { agent: { id, ...options } } },
});

after(async () => {
  for (const id of made) await letta.client.agents.delete(id);
});

test("vercel: text is generated", limit, async () => {
  const { text } = await generateText(asking(await rollingAgent(), "Good morning"));
  assert.match(text, /Good morning/);
});

for (const options of [{}, { streamTokens: true }, { streamTokens: true, background: true }]) {
  test(`vercel: a turn with a tool is streamed with ${JSON.stringify(options)}`, limit, async () => {
    const { fullStream } = streamText(asking(await rollingAgent(), "Call the roll tool with 16 sides", options));
    const parts = [];
    for await (const part of fullStream) parts.push(part);
    assert.deepEqual(parts.filter((part) => part.type === "error"), []);
    const call = parts.find((part) => part.type === "tool-call");
    assert.deepEqual([call.toolName, call.input], ["roll", { sides: 16 }]);
    const text = parts.filter((part) => part.type === "text-delta").map((part) => part.text).join("");
    assert.match(text, /a 16 of 16/);
    assert.equal(parts.at(-1).type, "finish");
  });
}

test("vercel: a history becomes messages of the AI SDK, also after tools were taken away and messages reset", limit, async () => {
  const id = await rollingAgent();
  await generateText(asking(id, "Call the roll tool with 16 sides"));
  const shown = convertToAiSdkMessage(await letta.client.agents.messages.list(id));
  assert.ok(shown.some((message) => message.parts.some((part) => part.type === "tool-roll")));
  const agent = await letta.client.agents.retrieve(id);
  assert.deepEqual(agent.tags, ["web"]);
  assert.deepEqual((await letta.client.agents.tools.detach(id, agent.tools[0].id)).tools, []);
  assert.equal((await letta.client.agents.messages.reset(id, { addDefaultInitialMessages: false })).messageIds.length, 1);
});
