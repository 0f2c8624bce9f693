// What the server is doing, read from its metrics while the page is seen: more often while an answer comes.

import { request } from "./api.js";

const BUSY_MS = 500;
const IDLE_MS = 2000;

const shown = (id) => document.getElementById(id);

export class Load {
  #timer = 0;
  #reading = false;
  isBusy = false;

  constructor() {
    document.addEventListener("visibilitychange", () => this.refresh());
    this.refresh();
  }

  /** Reads now, and then again and again. */
  async refresh() {
    clearTimeout(this.#timer);
    if (document.hidden || this.#reading) return;
    this.#reading = true;
    try {
      const response = await request("metrics");
      show(parse(await response.text()));
      shown("trouble").textContent = "";
    } catch (error) {
      shown("trouble").textContent = error.status === 401 ? "No key yet" : error.message;
    }
    this.#reading = false;
    this.#timer = setTimeout(() => this.refresh(), this.isBusy ? BUSY_MS : IDLE_MS);
  }
}

/** Samples of Prometheus's text format, by name with labels. */
export function parse(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const end = line.lastIndexOf(" ");
    if (end > 0 && line[0] !== "#") samples.set(line.slice(0, end), Number(line.slice(end + 1)));
  }
  return samples;
}

function show(samples) {
  shown("running").textContent = samples.get("overshot_requests_running") ?? "–";
  shown("waiting").textContent = samples.get("overshot_requests_waiting") ?? "–";
  const percent = Math.round(cacheUse(samples) * 100);
  shown("cache-percent").textContent = `${percent} %`;
  shown("cache").setAttribute("aria-valuenow", String(percent));
  shown("cache").firstElementChild.style.width = `${percent}%`;
}

/** Of the fullest pool: it is the one that makes requests wait. */
function cacheUse(samples) {
  let most = 0;
  for (const [name, pages] of samples) {
    if (!name.startsWith("overshot_kv_pages{") || !pages) continue;
    most = Math.max(most, (samples.get(name.replace("_pages{", "_pages_used{")) ?? 0) / pages);
  }
  return most;
}
