// How turns look: one view for each, brought up to date with its data once a frame. Views know no network; what is
// pressed on them is handed to `actions`.

import { MarkdownView, element } from "./markdown.js";
import { decodeSpeed, isOver, openCalls } from "./conversation.js";

function button(label, onClick, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, label);
  made.addEventListener("click", onClick);
  return made;
}

/** Puts a text where only its end is new without touching what stands there already. */
function grow(node, text) {
  const shown = node.firstChild;
  if (shown && text.startsWith(shown.data)) shown.appendData(text.slice(shown.length));
  else node.textContent = text;
}

export class UserView {
  constructor(turn, actions) {
    this.turn = turn;
    this.actions = actions;
    this.root = element("article", { class: "turn user", "aria-label": "You" });
    this.#show();
  }

  update(isLast) {
    this.root.classList.toggle("last", isLast);
  }

  #show() {
    const edit = button("Edit", () => this.edit(), { class: "quiet edit" });
    const copy = button("Copy", () => this.actions.copy(this.turn.content, copy), { class: "quiet" });
    const said = element("div", { class: "said" }, this.turn.content);
    this.root.replaceChildren(said, element("div", { class: "acts" }, copy, edit));
  }

  edit() {
    const field = element("textarea", { class: "rewrite", "aria-label": "Edit your message", rows: "3" });
    field.value = this.turn.content;
    const cancel = () => {
      this.#show();
      this.root.querySelector(".edit").focus();
    };
    const send = () => field.value.trim() && this.actions.rewrite(this.turn, field.value.trim());
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        cancel();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    const row = element("div", { class: "row" }, button("Cancel", cancel), button("Send", send, { class: "primary" }));
    this.root.replaceChildren(field, row);
    field.focus();
  }
}

export class AnswerView {
  #cards = new Map();

  constructor(turn, actions) {
    this.turn = turn;
    this.actions = actions;
    this.thought = element("p", { class: "thought" });
    this.summary = element("summary", {}, "Thinking");
    this.thinking = element("details", { class: "thinking" }, this.summary, this.thought);
    this.pending = element("p", { class: "pending" }, element("i"), element("i"), element("i"));
    this.pending.setAttribute("aria-label", "Waiting for the first token");
    this.answer = element("div", { class: "answer" });
    this.markdown = new MarkdownView(this.answer);
    this.calls = element("div", { class: "calls" });
    this.unparsed = element("pre", { class: "unparsed" });
    this.problem = element("div", { class: "failure", role: "alert" });
    this.note = element("span", { class: "note" });
    this.copy = button("Copy", () => actions.copy(turn.content, this.copy), { class: "quiet" });
    this.again = button("Regenerate", () => actions.regenerate(), { class: "quiet again" });
    const acts = element("div", { class: "acts" }, this.note, this.copy, this.again);
    this.root = element("article", { class: "turn model-turn", "aria-label": "Answer" });
    this.root.append(this.thinking, this.pending, this.answer, this.calls, this.unparsed, this.problem, acts);
    this.thinking.open = !isOver(turn);
  }

  update(isLast) {
    const { turn } = this;
    const over = isOver(turn);
    this.root.classList.toggle("last", isLast);
    this.root.setAttribute("aria-busy", String(!over));
    this.pending.hidden = turn.state !== "waiting";
    this.#updateThinking(over);
    if (turn.content !== this.shown) this.markdown.show(turn.content);
    this.shown = turn.content;
    this.#updateCalls(isLast);
    this.unparsed.hidden = !turn.unparsed;
    this.unparsed.textContent = turn.unparsed;
    this.#updateProblem(isLast);
    this.note.textContent = note(turn);
    this.copy.hidden = !over || !turn.content;
    this.again.hidden = !over || !isLast || turn.state === "failed";
  }

  #updateThinking(over) {
    const { turn } = this;
    this.thinking.hidden = !turn.reasoning;
    grow(this.thought, turn.reasoning);
    const seconds = (turn.timing.thought - turn.timing.first) / 1000;
    const hasEnded = turn.timing.thought > 0 || over;
    const ended = seconds < 0.1 ? "Thought briefly" : `Thought for ${seconds.toFixed(1)} s`;
    this.summary.textContent = hasEnded ? ended : "Thinking";
    this.thinking.classList.toggle("live", !hasEnded);
    // Folded once, when the answer begins; whoever opens it again keeps it open.
    if (hasEnded && !this.hasFolded) {
      this.hasFolded = true;
      this.thinking.open = false;
    }
  }

  #updateCalls(isLast) {
    const { turn } = this;
    for (const call of turn.calls) {
      if (!this.#cards.has(call)) {
        const card = new CallCard(call, () => this.#sendResults());
        this.#cards.set(call, card);
        this.calls.append(card.root);
      }
    }
    const open = openCalls(turn);
    for (const [call, card] of this.#cards) {
      if (turn.calls.includes(call)) card.update(isOver(turn), isLast && open.includes(call));
      else card.root.remove();
    }
    if (open.length && isLast && !this.results) {
      const label = open.length === 1 ? "Send the result" : "Send the results";
      this.results = button(label, () => this.#sendResults(), { class: "primary send-results" });
      this.calls.append(element("div", { class: "row" }, this.results));
    } else if (this.results && !(open.length && isLast)) {
      this.results.parentNode.remove();
      this.results = null;
    }
  }

  /** Goes on to the first empty box, or on with the answer when there is none. */
  #sendResults() {
    const cards = openCalls(this.turn).map((call) => this.#cards.get(call));
    const empty = cards.find((card) => !card.field.value.trim());
    if (empty) return empty.field.focus();
    for (const card of cards) card.call.result = card.field.value;
    this.actions.goOn();
  }

  focusResults() {
    this.calls.querySelector("textarea")?.focus();
  }

  #updateProblem(isLast) {
    const { problem } = this.turn;
    this.problem.hidden = !problem;
    if (!problem || this.problem.dataset.shown === String(isLast)) return;
    this.problem.dataset.shown = String(isLast);
    this.problem.replaceChildren(element("p", {}, problem));
    if (isLast) this.problem.append(button("Try again", () => this.actions.regenerate()));
  }
}

class CallCard {
  constructor(call, onEnter) {
    this.call = call;
    this.state = element("span", { class: "call-state" });
    this.name = element("code", { class: "call-name" });
    this.given = element("pre", { class: "call-arguments", tabindex: "0" });
    this.field = element("textarea", { rows: "2", placeholder: "What the tool gives back", class: "mono" });
    this.field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      onEnter();
    });
    this.label = element("label", { class: "call-result" }, element("span", {}, "Result"), this.field);
    this.result = element("pre", { class: "call-given", tabindex: "0" });
    const head = element("div", { class: "call-head" }, element("span", { class: "call-kind" }, "Tool call"), this.name, this.state);
    this.root = element("section", { class: "call" }, head, this.given, this.label, this.result);
  }

  update(over, isAsked) {
    const { call } = this;
    this.root.setAttribute("aria-label", `Tool call ${call.name}`);
    this.name.textContent = call.name;
    if (over) this.given.textContent = pretty(call.arguments);
    else grow(this.given, call.arguments);
    this.given.hidden = !call.arguments;
    this.label.hidden = !isAsked;
    this.result.hidden = call.result === null;
    this.result.textContent = call.result ?? "";
    this.state.textContent = !over ? "writing" : call.result !== null ? "answered" : isAsked ? "waits for its result" : "not answered";
  }
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function note(turn) {
  const parts = [];
  if (turn.state === "stopped") parts.push("Stopped");
  if (turn.state === "done" && turn.finish === "length") parts.push("Cut at the token limit");
  const { tokens, pieces, first, asked } = turn.timing;
  if (pieces) parts.push(tokens ? `${tokens} tokens` : `about ${pieces} tokens`);
  const speed = decodeSpeed(turn);
  if (speed) parts.push(`${speed.isExact ? "" : "about "}${shortNumber(speed.perSecond)} tok/s`);
  if (first && isOver(turn)) parts.push(`first after ${shortNumber((first - asked) / 1000)} s`);
  return parts.join(" · ");
}

function shortNumber(value) {
  if (value >= 100) return Math.round(value).toLocaleString("en");
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}
