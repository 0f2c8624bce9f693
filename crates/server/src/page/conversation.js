// A conversation as plain data: turns of the user and of the model, how a streamed answer grows, and the messages that
// a request is made of. Nothing here touches the page.

const STORED = "overshot.conversation";

export function userTurn(content) {
  return { role: "user", content };
}

/** `state` is `waiting`, `streaming`, `done`, `stopped` or `failed`; all but the first two are final. */
export function answerTurn() {
  return {
    role: "assistant",
    state: "waiting",
    reasoning: "",
    content: "",
    calls: [],
    unparsed: "",
    finish: null,
    problem: "",
    timing: { asked: performance.now(), first: 0, thought: 0, last: 0, pieces: 0, tokens: 0 },
  };
}

/** Adds what one chunk of a stream says. */
export function apply(turn, chunk, now = performance.now()) {
  const { timing } = turn;
  if (chunk.usage) timing.tokens = chunk.usage.completion_tokens;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  turn.state = "streaming";
  timing.first ||= now;
  timing.last = now;
  timing.pieces++;
  const { delta } = choice;
  turn.reasoning += delta.reasoning_content ?? "";
  turn.content += delta.content ?? "";
  turn.unparsed += delta.unparsed_tool_text ?? "";
  if (turn.reasoning && !timing.thought && !delta.reasoning_content) timing.thought = now;
  for (const part of delta.tool_calls ?? []) applyCall(turn, part);
  // A call that proved to be none; its text comes as unparsed.
  const withdrawn = delta.withdrawn_tool_calls ?? [];
  if (withdrawn.length) turn.calls = turn.calls.filter((call) => !withdrawn.includes(call.index));
  turn.finish = choice.finish_reason ?? turn.finish;
}

function applyCall(turn, part) {
  let call = turn.calls.find((known) => known.index === part.index);
  if (!call) {
    call = { index: part.index, id: "", name: "", arguments: "", result: null };
    turn.calls.push(call);
  }
  call.id = part.id ?? call.id;
  call.name += part.function?.name ?? "";
  call.arguments += part.function?.arguments ?? "";
}

/** Ends a turn. What comes after the last piece may still correct its count of tokens. */
export function finish(turn, state, problem = "") {
  turn.state = state;
  turn.problem = problem;
  if (turn.reasoning) turn.timing.thought ||= turn.timing.last;
}

export function isOver(turn) {
  return turn.role === "user" || !["waiting", "streaming"].includes(turn.state);
}

/** Calls that the model waits for. Those of an answer that was cut are not whole, and are never sent back. */
export function openCalls(turn) {
  return hasCalls(turn) ? turn.calls.filter((call) => call.result === null) : [];
}

function hasCalls(turn) {
  return turn?.role === "assistant" && turn.state === "done" && turn.finish === "tool_calls";
}

/** The messages of the API that stand for these turns. */
export function messages(system, turns) {
  const made = system ? [{ role: "system", content: system }] : [];
  for (const turn of turns) {
    if (turn.role === "user") {
      made.push({ role: "user", content: turn.content });
      continue;
    }
    const calls = hasCalls(turn) ? turn.calls : [];
    if (!turn.content && !calls.length) continue;
    const message = { role: "assistant", content: turn.content };
    if (turn.reasoning) message.reasoning_content = turn.reasoning;
    if (calls.length) {
      message.tool_calls = calls.map((call) => ({
        id: call.id,
        type: "function",
        function: { name: call.name, arguments: call.arguments },
      }));
    }
    made.push(message);
    for (const call of calls) made.push({ role: "tool", tool_call_id: call.id, content: call.result ?? "" });
  }
  return made;
}

/** Less than this lies within one reading of the network, and says nothing. */
const SHORTEST_SECONDS = 0.01;

/** Tokens a second after the first, and whether the number of tokens is the server's or an estimate by pieces. */
export function decodeSpeed(turn) {
  const { first, last, pieces, tokens } = turn.timing;
  const seconds = (last - first) / 1000;
  const count = tokens || pieces;
  if (seconds < SHORTEST_SECONDS || count < 2) return null;
  return { perSecond: (count - 1) / seconds, isExact: tokens > 0 };
}

/** A reload of the page keeps the conversation, the end of the tab does not. */
export function keep(turns) {
  try {
    sessionStorage.setItem(STORED, JSON.stringify(turns.filter(isOver)));
  } catch {
    // It has become larger than what a browser keeps; it stays on the page.
  }
}

export function kept() {
  try {
    const turns = JSON.parse(sessionStorage.getItem(STORED));
    return Array.isArray(turns) ? turns : [];
  } catch {
    return [];
  }
}
