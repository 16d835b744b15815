// What an npm user does first: create, send, stream, approve, cancel. Runs on node's own test runner.

import assert from "node:assert/strict";
import { after, test } from "node:test";

import Letta from "@letta-ai/letta-client";

import { ROLL } from "./tools.mjs";

const client = new Letta({ baseURL: process.env.HOLDFAST_URL, apiKey: "none" });
const limit = { timeout: 60_000 };
const made = [];

const newAgent = async (fields = {}) => {
  const agent = await client.agents.create({ name: "scout", include_base_tools: false, ...fields });
  made.push(agent.id);
  return agent;
};

const rollTool = (fields = {}) => client.tools.upsert({ source_code: ROLL, ...fields });

const typesOf = (messages) => messages.map((message) => message.message_type);

const collect = async (stream) => {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
};

after(async () => {
  for (const id of made) await client.agents.delete(id);
});

test("an agent is created with its memory, and found again", limit, async () => {
  const agent = await newAgent({ memory_blocks: [{ label: "human", value: "My name is Ada." }] });
  const found = await client.agents.retrieve(agent.id, { include: ["agent.blocks"] });
  assert.equal(found.name, "scout");
  assert.equal(found.blocks[0].value, "My name is Ada.");
  const listed = [];
  for await (const each of client.agents.list()) listed.push(each.id);
  assert.ok(listed.includes(agent.id));
});

test("a message is answered", limit, async () => {
  const agent = await newAgent();
  const answer = await client.agents.messages.create(agent.id, { input: "Good morning" });
  assert.equal(answer.stop_reason.stop_reason, "end_turn");
  assert.match(answer.messages.at(-1).content, /Good morning/);
});

test("a custom tool is called and its return told", limit, async () => {
  const tool = await rollTool();
  const agent = await newAgent({ tool_ids: [tool.id] });
  const answer = await client.agents.messages.create(agent.id, { input: "Call the roll tool with 16 sides" });
  const types = typesOf(answer.messages);
  assert.ok(types.indexOf("tool_call_message") < types.indexOf("tool_return_message"));
  assert.match(answer.messages.at(-1).content, /a 16 of 16/);
});

test("tokens are streamed one by one and end with stop reason and usage", limit, async () => {
  const agent = await newAgent();
  const stream = await client.agents.messages.create(agent.id, {
    input: "Talk [[no_reasoning]] [[tokens:20]]", streaming: true, stream_tokens: true,
  });
  const events = await collect(stream);
  const words = events.filter((event) => event.message_type === "assistant_message");
  assert.ok(words.length >= 20);
  assert.equal(new Set(words.map((word) => word.id)).size, 1);
  assert.deepEqual(typesOf(events).slice(-2), ["stop_reason", "usage_statistics"]);
});

test("a call that needs approval waits, and runs once it is approved", limit, async () => {
  const tool = await rollTool();
  const agent = await newAgent({ tool_ids: [tool.id], tool_rules: [{ type: "requires_approval", tool_name: "roll" }] });
  const asked = await client.agents.messages.create(agent.id, { input: "Call the roll tool with 6 sides" });
  assert.equal(asked.stop_reason.stop_reason, "requires_approval");
  const request = asked.messages.at(-1);
  assert.equal(request.message_type, "approval_request_message");
  await assert.rejects(
    client.agents.messages.create(agent.id, { input: "Well?" }, { maxRetries: 0 }),
    (error) => error.status === 409 && /waiting for approval/.test(error.message),
  );
  const answer = await client.agents.messages.create(agent.id, {
    messages: [{
      type: "approval",
      approvals: [{ type: "approval", approve: true, tool_call_id: request.tool_call.tool_call_id }],
    }],
  });
  assert.equal(answer.messages[0].message_type, "tool_return_message");
  assert.match(answer.messages.at(-1).content, /a 6 of 6/);
});

test("a denied call is not run, and the model is told the reason", limit, async () => {
  const tool = await rollTool();
  const agent = await newAgent({ tool_ids: [tool.id], tool_rules: [{ type: "requires_approval", tool_name: "roll" }] });
  const asked = await client.agents.messages.create(agent.id, { input: "Call the roll tool with 6 sides" });
  const answer = await client.agents.messages.create(agent.id, {
    messages: [{
      type: "approval",
      approvals: [{
        type: "approval", approve: false, reason: "no gambling", tool_call_id: asked.messages.at(-1).tool_call.tool_call_id,
      }],
    }],
  });
  assert.equal(answer.messages[0].status, "error");
  assert.match(answer.messages.at(-1).content, /no gambling/);
});

test("cancel in the middle of a stream ends it, and the agent answers again", limit, async () => {
  const agent = await newAgent();
  const stream = await client.agents.messages.create(agent.id, {
    input: "Talk [[no_reasoning]] [[tokens:50]] [[stall_after:5]]", streaming: true, stream_tokens: true,
  });
  const events = [];
  let results = null;
  for await (const event of stream) {
    events.push(event);
    if (event.message_type === "assistant_message" && results === null) {
      results = await client.agents.messages.cancel(agent.id);
    }
  }
  assert.deepEqual(Object.values(results), ["cancelled"]);
  assert.equal(events.at(-2).stop_reason, "cancelled");
  const next = await client.agents.messages.create(agent.id, { input: "Still there?" });
  assert.equal(next.stop_reason.stop_reason, "end_turn");
});

test("a background stream is resumed from the middle", limit, async () => {
  const agent = await newAgent();
  const events = await collect(await client.agents.messages.create(agent.id, {
    input: "Talk [[no_reasoning]] [[tokens:20]]", streaming: true, stream_tokens: true, background: true,
  }));
  const content = events.filter((event) => event.message_type === "assistant_message");
  const middle = content[9];
  const rest = await collect(await client.runs.messages.stream(middle.run_id, { starting_after: middle.seq_id }));
  const resumed = rest.filter((event) => event.message_type === "assistant_message");
  assert.deepEqual(resumed.map((event) => event.seq_id), content.slice(10).map((event) => event.seq_id));
});

test("an unknown agent is 404 and a malformed id 422", limit, async () => {
  await assert.rejects(
    client.agents.retrieve("agent-123e4567-e89b-42d3-8456-426614174000"), (error) => error.status === 404,
  );
  await assert.rejects(client.agents.retrieve("nobody"), (error) => error.status === 422);
});
