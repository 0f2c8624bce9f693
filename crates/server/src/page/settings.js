// What the side panel holds: read from this browser's storage, written back at every change, and turned into fields of
// a request. What cannot be sent is said beside the field and stops nobody from typing on.

const STORED = "overshot.settings";
const DEFAULTS = { system: "", thinking: "", temperature: "", maxTokens: "", tools: "", theme: "" };

export class Settings {
  #form = document.getElementById("settings-form");
  #panel = document.getElementById("settings");
  #opener = document.getElementById("open-settings");
  #problem = document.getElementById("settings-error");

  constructor() {
    this.#fill({ ...DEFAULTS, ...stored() });
    this.#form.addEventListener("input", () => this.#changed());
    this.#form.addEventListener("submit", (event) => event.preventDefault());
    this.#opener.addEventListener("click", () => (this.isOpen ? this.close() : this.open()));
    document.getElementById("close-settings").addEventListener("click", () => this.close());
    document.getElementById("reset-settings").addEventListener("click", () => {
      this.#fill(DEFAULTS);
      this.#changed();
    });
    this.#changed();
  }

  get isOpen() {
    return !this.#panel.hidden;
  }

  open() {
    this.#panel.hidden = false;
    this.#opener.setAttribute("aria-expanded", "true");
    this.#form.elements.system.focus();
  }

  close() {
    this.#panel.hidden = true;
    this.#opener.setAttribute("aria-expanded", "false");
    this.#opener.focus();
  }

  get system() {
    return this.#values().system.trim();
  }

  /** Fields of a chat request beside its messages. Throws an error with a sentence about what cannot be sent. */
  fields() {
    const { thinking, temperature, maxTokens, tools } = this.#values();
    const fields = {};
    if (thinking) fields.reasoning_effort = thinking;
    if (temperature.trim()) fields.temperature = number(temperature, "Temperature");
    if (maxTokens.trim()) fields.max_tokens = number(maxTokens, "Max tokens");
    const declared = toolList(tools);
    if (declared.length) fields.tools = declared;
    return fields;
  }

  #values() {
    return Object.fromEntries(new FormData(this.#form));
  }

  #fill(values) {
    for (const [name, value] of Object.entries(values)) {
      if (name in DEFAULTS) this.#form.elements[name].value = value;
    }
  }

  #changed() {
    const values = this.#values();
    localStorage.setItem(STORED, JSON.stringify(values));
    if (values.theme) document.documentElement.dataset.theme = values.theme;
    else delete document.documentElement.dataset.theme;
    let problem = "";
    try {
      this.fields();
    } catch (error) {
      problem = error.message;
    }
    this.#problem.textContent = problem;
  }
}

function stored() {
  try {
    return JSON.parse(localStorage.getItem(STORED)) ?? {};
  } catch {
    return {};
  }
}

/** What a number may be is for the server to say. */
function number(text, name) {
  const value = Number(text.trim().replace(",", "."));
  if (!Number.isFinite(value)) throw new Error(`${name} is no number: write digits, or leave it empty.`);
  return value;
}

function toolList(text) {
  if (!text.trim()) return [];
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`Tools are no JSON: ${error.message}`);
  }
  if (!Array.isArray(tools)) throw new Error("Tools are no list: put [ and ] around them.");
  return tools;
}
