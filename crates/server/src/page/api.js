// The server's API as this page uses it: requests with the key if there is one, errors in the server's own words, and
// server-sent events read as the standard says. Paths are relative, so that the page also works behind a prefix.

const KEY = "overshot.key";

/** What the server refused, or what became of the connection. `message` is for people. */
export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export function hasKey() {
  return localStorage.getItem(KEY) !== null;
}

export function setKey(key) {
  localStorage.setItem(KEY, key);
}

/** Gives the response if its status is good. */
export async function request(path, options = {}) {
  const headers = { ...options.headers };
  const key = localStorage.getItem(KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.");
  }
  if (!response.ok) throw new ApiError(await refusal(response), response.status);
  return response;
}

async function refusal(response) {
  const text = await response.text().catch(() => "");
  try {
    const message = JSON.parse(text).error.message;
    if (typeof message === "string" && message) return message;
  } catch {
    // Something between here and the server has answered, in words of its own.
  }
  return `The server answered with status ${response.status}.`;
}

/** The pieces of one streamed chat answer, as parsed chunks. Ends only after the answer is whole. */
export async function* chatChunks(body, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await read(reader);
      if (done) throw new ApiError("The connection closed before the answer was whole.");
      for (const data of parser.push(decoder.decode(value, { stream: true }))) {
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new ApiError(chunk.error.message);
        yield chunk;
      }
    }
  } finally {
    // Left early, the server learns of it and stops computing.
    reader.cancel().catch(() => {});
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The connection broke before the answer was whole.");
  }
}

/** Takes a stream of server-sent events apart, wherever it was cut. Event names and ids are of no use here. */
export class EventParser {
  #rest = "";
  #data = [];

  /** The data of every event that this piece of text completes. */
  push(text) {
    const events = [];
    const whole = this.#rest + text;
    let start = 0;
    for (;;) {
      const end = lineEnd(whole, start);
      if (end < 0) break;
      this.#line(whole.slice(start, end), events);
      start = end + (whole[end] === "\r" && whole[end + 1] === "\n" ? 2 : 1);
    }
    this.#rest = whole.slice(start);
    return events;
  }

  #line(line, events) {
    if (line === "") {
      if (this.#data.length) events.push(this.#data.join("\n"));
      this.#data = [];
      return;
    }
    // A line that begins with a colon is a comment: it keeps connections alive.
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    if (field === "data") this.#data.push(colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, ""));
  }
}

/** A carriage return at the very end may be half of a line end. */
function lineEnd(text, start) {
  for (let at = start; at < text.length; at++) {
    if (text[at] === "\n") return at;
    if (text[at] === "\r") return at + 1 < text.length ? at : -1;
  }
  return -1;
}
