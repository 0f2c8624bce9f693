// The chat itself: what a key or a button does, one request at a time. Data is in conversation.js, its looks are in
// turns.js, the network is in api.js.

import { chatChunks, hasKey, request, setKey } from "./api.js";
import { answerTurn, apply, finish, keep, kept, messages, openCalls, userTurn } from "./conversation.js";
import { Load } from "./load.js";
import { Settings } from "./settings.js";
import { AnswerView, UserView } from "./turns.js";

const at = (id) => document.getElementById(id);
const input = at("input");
const scroll = at("scroll");

const settings = new Settings();
const load = new Load();
const views = new Map();
let turns = kept();
let previous = [];
let running = null;
let frame = 0;

const actions = {
  regenerate() {
    if (running) return;
    if (turns.at(-1)?.role === "assistant") drop(turns.length - 1);
    answer();
  },
  rewrite(turn, content) {
    stop();
    drop(turns.indexOf(turn));
    send(content);
  },
  goOn: () => running || answer(),
  async copy(text, button) {
    const label = button.textContent;
    button.textContent = (await copied(text)) ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = label), 1500);
  },
};

/* Showing */

function show() {
  frame = 0;
  const follows = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 90;
  for (const turn of turns) {
    if (!views.has(turn)) {
      const view = turn.role === "user" ? new UserView(turn, actions) : new AnswerView(turn, actions);
      views.set(turn, view);
      at("turns").append(view.root);
    }
  }
  const lastAsked = turns.findLast((turn) => turn.role === "user");
  for (const turn of turns.slice(-3)) views.get(turn).update(turn === turns.at(-1));
  for (const [turn, view] of views) view.root.classList.toggle("last-asked", turn === lastAsked);
  at("welcome").hidden = turns.length > 0;
  at("bring-back").hidden = !previous.length;
  at("composer").classList.toggle("running", running !== null);
  at("send").setAttribute("aria-label", running ? "Stop" : "Send");
  at("send").title = running ? "Stop (Esc)" : "Send (Enter)";
  if (follows) scroll.scrollTop = scroll.scrollHeight;
  showLatest();
}

function showSoon() {
  // A hidden page gets no frames: it is drawn when it is seen again.
  frame ||= requestAnimationFrame(show);
}

function showLatest() {
  at("latest").hidden = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 160;
}

function toLatest() {
  scroll.scrollTop = scroll.scrollHeight;
}

function fit(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

function announce(text) {
  at("announcer").textContent = text;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without https there is no clipboard but the old one.
    const field = document.createElement("textarea");
    field.className = "unseen";
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

/* Doing */

function drop(from) {
  for (const turn of turns.splice(from)) {
    views.get(turn)?.root.remove();
    views.delete(turn);
  }
}

function submit() {
  const content = input.value.trim();
  const waiting = turns.length ? openCalls(turns.at(-1)) : [];
  if (running || !content) return;
  if (waiting.length) {
    announce("The tool call waits for its result.");
    return views.get(turns.at(-1)).focusResults();
  }
  input.value = "";
  fit(input);
  send(content);
}

function send(content) {
  turns.push(userTurn(content));
  answer();
}

/** Has the model take its turn. */
async function answer() {
  const asked = [...turns];
  const turn = answerTurn();
  const control = new AbortController();
  turns.push(turn);
  running = control;
  load.isBusy = true;
  load.refresh();
  keep(turns);
  show();
  toLatest();
  announce("Answering");
  try {
    const body = { ...settings.fields(), messages: messages(settings.system, asked) };
    for await (const chunk of chatChunks(body, control.signal)) {
      apply(turn, chunk);
      showSoon();
    }
    finish(turn, "done");
  } catch (error) {
    if (error.name === "AbortError") finish(turn, "stopped");
    else finish(turn, "failed", error.message);
    if (error.status === 401) askForKey(error.message);
  }
  if (running === control) {
    running = null;
    load.isBusy = false;
  }
  if (!turns.includes(turn)) return;
  show();
  keep(turns);
  load.refresh();
  announce({ done: "Answer finished", stopped: "Stopped", failed: "The answer failed" }[turn.state]);
  if (openCalls(turn).length) views.get(turn).focusResults();
}

function stop() {
  running?.abort();
}

function newChat() {
  stop();
  if (turns.length) previous = [...turns];
  drop(0);
  keep(turns);
  show();
  input.focus();
}

function bringBack() {
  turns = previous;
  previous = [];
  showAll();
  input.focus();
}

function showAll() {
  show();
  turns.forEach((turn, index) => views.get(turn).update(index === turns.length - 1));
  toLatest();
}

/* The server */

async function greet() {
  try {
    const [model] = (await (await request("v1/models")).json()).data;
    at("model").textContent = at("model").title = model.id;
    document.title = `${model.id} · Overshot`;
    const context = model.max_model_len.toLocaleString("en");
    at("about-model").textContent = `${model.id} answers here, with a context of ${context} tokens.`;
  } catch (error) {
    if (error.status === 401) askForKey(hasKey() ? error.message : "");
  }
}

function askForKey(problem) {
  at("key-problem").textContent = problem;
  if (!at("key-dialog").open) at("key-dialog").showModal();
}

at("key-form").addEventListener("submit", () => {
  setKey(at("key").value.trim());
  greet();
  load.refresh();
  if (turns.at(-1)?.state === "failed") actions.regenerate();
});

/* Keys and buttons */

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) stop();
  else submit();
});
input.addEventListener("input", () => fit(input));
input.addEventListener("keydown", (event) => {
  // While a character is being composed, Enter chooses it.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
at("new-chat").addEventListener("click", newChat);
at("bring-back").addEventListener("click", bringBack);
at("latest").addEventListener("click", toLatest);
scroll.addEventListener("scroll", showLatest, { passive: true });
at("turns").addEventListener("click", (event) => {
  const button = event.target.closest(".copy-code");
  if (button) actions.copy(button.closest("figure").querySelector("code").textContent, button);
});

document.addEventListener("keydown", (event) => {
  if (at("key-dialog").open) return;
  const isTyping = event.target.closest("input, textarea, select") !== null;
  if (event.key === "Escape") {
    if (running) stop();
    else if (settings.isOpen) settings.close();
  } else if (event.key === "/" && !isTyping) {
    event.preventDefault();
    input.focus();
  } else if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey) {
    event.preventDefault();
    newChat();
  }
});

greet();
showAll();
