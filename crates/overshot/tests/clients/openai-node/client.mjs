// Checks the server with OpenAI's own client for Node, as its users meet it.
//
//     node client.mjs path/to/overshot
//
// Most servers here play a script, so that every piece of an answer is known; the built-in model is held to a schema.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import OpenAI from "openai";
import { VERSION } from "openai/version";

const overshot = process.argv[2];
const messages = [{ role: "user", content: "Hello?" }];
const parameters = {
  type: "object",
  properties: { id: { type: "string" }, scale: { type: "number" }, on: { type: "boolean" } },
};
const tools = [{ type: "function", function: { name: "read_meter", parameters } }];
const calls = [
  "Let me look.",
  '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="read_meter">\n',
  '<｜DSML｜parameter name="id" string="true">né "q"</｜DSML｜parameter>\n',
  '<｜DSML｜parameter name="scale" string="false">0.5</｜DSML｜parameter>\n',
  "</｜DSML｜invoke>\n",
  '<｜DSML｜invoke name="read_meter">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
];
const called = [
  ["read_meter", { id: 'né "q"', scale: 0.5 }],
  ["read_meter", {}],
];

/** Runs `check` with a client of a server that plays these answers, each a list of chunks. */
async function playing(answers, check) {
  const folder = await mkdtemp(join(tmpdir(), "overshot-"));
  try {
    const script = join(folder, "script.jsonl");
    await writeFile(script, answers.map((chunks) => JSON.stringify({ chunks }) + "\n").join(""));
    await serving(["--backend", `scripted:${script}`], check);
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** Runs `check` with a client of a server that has these flags. */
async function serving(flags, check) {
  const backend = flags.includes("--backend") ? [] : ["--backend", "cpu"];
  const server = spawn(overshot, ["serve", "--port", "0", ...backend, ...flags], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const exited = once(server, "exit");
  try {
    const [line] = await Promise.race([once(createInterface(server.stdout), "line"), exited]);
    assert.match(String(line), /^listening on http:\/\//);
    const baseURL = line.slice("listening on ".length) + "/v1";
    const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
    const model = (await client.models.list()).data[0].id;
    await check(client, (fields) => ({ model, messages, ...fields }));
  } finally {
    server.kill();
    await exited;
  }
}

function told(message) {
  return message.tool_calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]);
}

const checks = {
  async answers() {
    await playing([["One ", "two."], ["Thought.", "</think>", "Said."]], async (client, fields) => {
      let answer = await client.chat.completions.create(fields({}));
      assert.equal(answer.choices[0].message.content, "One two.");
      assert.equal(answer.choices[0].finish_reason, "stop");
      assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
      answer = await client.chat.completions.create(fields({ reasoning_effort: "high" }));
      assert.equal(answer.choices[0].message.reasoning_content, "Thought.");
      assert.equal(answer.choices[0].message.content, "Said.");
    });
  },

  async streams() {
    // A character whose bytes come in two steps is delivered whole.
    const pieces = ["Thought.", "</think>", "na", { hex: "c3" }, { hex: "af" }, "ve"];
    await playing([pieces], async (client, fields) => {
      const stream = await client.chat.completions.create(
        fields({ reasoning_effort: "high", stream: true, stream_options: { include_usage: true } }),
      );
      let [content, thinking, reasons, usage] = ["", "", [], null];
      for await (const chunk of stream) {
        usage = chunk.usage ?? usage;
        for (const { delta, finish_reason } of chunk.choices) {
          content += delta.content ?? "";
          thinking += delta.reasoning_content ?? "";
          if (finish_reason) reasons.push(finish_reason);
        }
      }
      assert.deepEqual([thinking, content, reasons], ["Thought.", "naïve", ["stop"]]);
      assert.ok(usage.completion_tokens > 0);
      // The client's own assembly of a stream.
      const whole = await client.chat.completions.stream(fields({ reasoning_effort: "high" })).finalMessage();
      assert.equal(whole.content, "naïve");
    });
  },

  async tools() {
    await playing([calls, calls, ["Done."]], async (client, fields) => {
      const { message, finish_reason } = (await client.chat.completions.create(fields({ tools }))).choices[0];
      assert.deepEqual([told(message), message.content, finish_reason], [called, "Let me look.", "tool_calls"]);
      const streamed = await client.chat.completions.stream(fields({ tools })).finalMessage();
      assert.deepEqual([told(streamed), streamed.content], [called, "Let me look."]);
      // The calls and their results go back as they came.
      const results = message.tool_calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: "7" }));
      const history = { messages: [...messages, message, ...results], tools };
      const answer = await client.chat.completions.create(fields(history));
      assert.equal(answer.choices[0].message.content, "Done.");
    });
  },

  async structured() {
    const schema = {
      type: "object",
      properties: { row: { type: "integer", minimum: 0, maximum: 99 }, color: { enum: ["red", "green"] } },
      required: ["row", "color"],
      additionalProperties: false,
    };
    const named = { name: "dot", strict: true, schema };
    const check = ({ row, color, ...rest }) => {
      assert.ok(Number.isInteger(row) && row >= 0 && row < 100 && ["red", "green"].includes(color));
      assert.deepEqual(rest, {});
    };
    await serving([], async (client, fields) => {
      const response_format = { type: "json_schema", json_schema: named };
      const { message } = (await client.chat.completions.parse(fields({ response_format }))).choices[0];
      check(message.parsed);
      const streamed = await client.chat.completions.stream(fields({ response_format })).finalMessage();
      check(JSON.parse(streamed.content));
      const { model } = fields({});
      const text = { format: { type: "json_schema", ...named } };
      check((await client.responses.parse({ model, input: "Hello?", text })).output_parsed);
      const draw = [{ type: "function", function: { name: "draw", strict: true, parameters: schema } }];
      const forced = await client.chat.completions.create(fields({ tools: draw, tool_choice: "required" }));
      for (const [name, drawn] of told(forced.choices[0].message)) {
        assert.equal(name, "draw");
        check(drawn);
      }
    });
  },

  async errors() {
    await playing([["Hello."]], async (client, fields) => {
      const create = (more) => client.chat.completions.create(fields(more));
      await assert.rejects(create({ model: "gpt" }), { name: "Error", status: 404, code: "model_not_found" });
      await assert.rejects(create({ top_p: 2 }), { status: 400, code: "invalid_value", param: "top_p" });
      await assert.rejects(create({ messages: "hello" }), OpenAI.BadRequestError);
      await assert.rejects(client.models.retrieve("gpt"), OpenAI.NotFoundError);
    });
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(`ok: ${name}`);
}
console.log(`openai-node ${VERSION}: ${Object.keys(checks).length} groups of checks passed`);
