// The last 0.x client, as old programs use it: whole agents without asking for their parts, and streams by a route of
// their own. It throws where an object was promised and null comes.

import assert from "node:assert/strict";
import { after, test } from "node:test";

import { LettaClient } from "letta-client-0x";

import { ROLL } from "./tools.mjs";

const client = new LettaClient({ baseUrl: process.env.HOLDFAST_URL, token: "none" });
const limit = { timeout: 60_000 };
const made = [];

const newAgent = async (fields = {}) => {
  const agent = await client.agents.create({ name: "veteran", includeBaseTools: false, ...fields });
  made.push(agent.id);
  return agent;
};

const rollingAgent = async (fields = {}) => {
  const tool = await client.tools.upsert({ sourceCode: ROLL });
  return newAgent({
    memoryBlocks: [{ label: "human", value: "Ada" }], tags: ["old", "client"], toolIds: [tool.id], ...fields,
  });
};

const parts = (agent) => ({
  tools: agent.tools.map((tool) => tool.name),
  blocks: agent.memory.blocks.map((block) => block.value),
  tags: [...agent.tags].sort(),
});
const whole = { tools: ["roll"], blocks: ["Ada"], tags: ["client", "old"] };

const user = (content) => ({ messages: [{ role: "user", content }] });

const typesOf = (messages) => messages.map((message) => message.messageType).filter((type) => type !== "ping");

const collect = async (stream) => {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
};

const turn = ["tool_call_message", "tool_return_message", "assistant_message"];
const closing = ["stop_reason", "usage_statistics"];

after(async () => {
  for (const id of made) await client.agents.delete(id);
});

test("0.x: an agent is created, read, listed and modified whole", limit, async () => {
  const agent = await rollingAgent();
  assert.deepEqual(parts(agent), whole);
  assert.deepEqual(parts(await client.agents.retrieve(agent.id)), whole);
  const [listed] = await client.agents.list({ name: "veteran", tags: ["old"] });
  assert.deepEqual(parts(listed), whole);
  const modified = await client.agents.modify(agent.id, { description: "knows much" });
  assert.equal(modified.description, "knows much");
  assert.deepEqual(parts(modified), whole);
});

test("0.x: only the relations that are named are filled", limit, async () => {
  const agent = await rollingAgent();
  const found = await client.agents.retrieve(agent.id, { includeRelationships: ["tools"] });
  assert.deepEqual(parts(found), { ...whole, blocks: [], tags: [] });
});

test("0.x: attach, detach and approval answer with the agent", limit, async () => {
  const agent = await newAgent();
  const tool = await client.tools.upsert({ sourceCode: ROLL });
  assert.deepEqual(parts(await client.agents.tools.attach(agent.id, tool.id)).tools, ["roll"]);
  const guarded = await client.agents.tools.modifyApproval(agent.id, "roll", { requiresApproval: true });
  assert.deepEqual(guarded.toolRules.map((rule) => rule.type), ["requires_approval"]);
  assert.deepEqual((await client.agents.tools.detach(agent.id, tool.id)).tools, []);
  assert.deepEqual((await client.agents.tools.detach(agent.id, tool.id)).tools, []);
});

test("0.x: a block is attached, changed by its label and detached", limit, async () => {
  const agent = await newAgent();
  const block = await client.blocks.create({ label: "project", value: "one" });
  assert.deepEqual(parts(await client.agents.blocks.attach(agent.id, block.id)).blocks, ["one"]);
  await client.agents.blocks.modify(agent.id, "project", { value: "two" });
  assert.equal((await client.blocks.retrieve(block.id)).value, "two");
  assert.deepEqual(parts(await client.agents.blocks.detach(agent.id, block.id)).blocks, []);
  await client.blocks.delete(block.id);
});

test("0.x: a message is answered, and a reset gives the agent with an empty history", limit, async () => {
  const agent = await rollingAgent();
  const answer = await client.agents.messages.create(agent.id, user("Call the roll tool with 16 sides [[no_reasoning]]"));
  assert.deepEqual(typesOf(answer.messages), turn);
  assert.equal(answer.stopReason.stopReason, "end_turn");
  assert.match(answer.messages.at(-1).content, /a 16 of 16/);
  const listed = await client.agents.messages.list(agent.id);
  assert.deepEqual(typesOf(listed), ["system_message", "user_message", ...turn]);
  assert.equal((await client.agents.messages.reset(agent.id)).messageIds.length, 1);
});

test("0.x: steps, tokens and background runs are streamed", limit, async () => {
  const agent = await rollingAgent();
  const call = user("Call the roll tool with 16 sides [[no_reasoning]]");
  const steps = await collect(await client.agents.messages.createStream(agent.id, call));
  assert.deepEqual(typesOf(steps), [...turn, ...closing]);
  const talk = user("Talk [[no_reasoning]] [[tokens:20]]");
  const events = await collect(
    await client.agents.messages.createStream(agent.id, { ...talk, streamTokens: true, background: true }),
  );
  const words = events.filter((event) => event.messageType === "assistant_message");
  assert.ok(words.length >= 20);
  assert.deepEqual(typesOf(events).slice(-2), closing);
  const run = await client.runs.retrieve(words[0].runId);
  assert.equal(run.status, "completed");
  assert.ok((await client.runs.list({ agentIds: [agent.id] })).some((found) => found.id === run.id));
});

test("0.x: a call that needs approval is approved by the id of its request", limit, async () => {
  const agent = await rollingAgent({ toolRules: [{ type: "requires_approval", toolName: "roll" }] });
  const asked = await client.agents.messages.create(agent.id, user("Call the roll tool with 6 sides"));
  assert.equal(asked.stopReason.stopReason, "requires_approval");
  const answer = await client.agents.messages.create(agent.id, {
    messages: [{ type: "approval", approve: true, approvalRequestId: asked.messages.at(-1).id }],
  });
  assert.match(answer.messages.at(-1).content, /a 6 of 6/);
});

test("0.x: an unknown agent is 404", limit, async () => {
  await assert.rejects(
    client.agents.retrieve("agent-123e4567-e89b-42d3-8456-426614174000"), (error) => error.statusCode === 404,
  );
});
