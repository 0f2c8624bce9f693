// The part of Markdown that answers use: code, lists, headings, emphasis, quotes, tables, links. It builds elements and
// text nodes only; no text of a model is ever read as HTML. What it does not know stays as it was written.

const DEPTH_MAX = 8;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(\s+)(?=\S)/;
const QUOTE = /^ {0,3}>\s?/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** Shows a text that grows. Blocks that are complete are built once; only the last one is built again. */
export class MarkdownView {
  #settled = 0;
  #open = [];

  constructor(root) {
    this.root = root;
  }

  show(text) {
    const lines = text.slice(this.#settled).split("\n");
    const found = blocks(lines, 0);
    for (const node of this.#open) node.remove();
    const last = found.pop();
    for (const { node } of found) this.root.append(node);
    this.#open = last ? [last.node] : [];
    this.root.append(...this.#open);
    if (last) this.#settled += lines.slice(0, last.start).reduce((sum, line) => sum + line.length + 1, 0);
  }
}

/** Blocks with the line that each begins at. */
function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at++;
      continue;
    }
    const [node, end] = block(lines, at, depth);
    found.push({ node, start: at });
    at = end;
  }
  return found;
}

function nodes(lines, depth) {
  return blocks(lines, depth).map((found) => found.node);
}

/** The block that begins at a line, and the line behind it. */
function block(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return codeBlock(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [element(`h${Math.min(heading[1].length + 2, 6)}`, {}, ...inline(heading[2])), at + 1];
  if (RULE.test(line)) return [element("hr"), at + 1];
  if (depth < DEPTH_MAX && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEPTH_MAX && ITEM.test(line)) return list(lines, at, depth);
  if (startsTable(lines, at)) return table(lines, at);
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== "" && !interrupts(lines, end)) end++;
  return [element("p", {}, ...inline(lines.slice(at, end).join("\n"))), end];
}

function interrupts(lines, at) {
  const line = lines[at];
  return [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line)) || startsTable(lines, at);
}

function codeBlock(lines, at, fence) {
  const indent = /^ */.exec(lines[at])[0].length;
  const closing = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) end++;
  const text = lines.slice(at + 1, end).map((line) => dedent(line, indent)).join("\n");
  const copy = element("button", { type: "button", class: "copy-code" }, "Copy");
  const head = element("figcaption", {}, element("span", {}, fence[2] || "text"), copy);
  const body = element("pre", { tabindex: "0" }, element("code", {}, text));
  return [element("figure", { class: "code" }, head, body), end + 1];
}

function dedent(line, most) {
  let cut = 0;
  while (cut < most && line[cut] === " ") cut++;
  return line.slice(cut);
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end++;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [element("blockquote", {}, ...nodes(inner, depth + 1)), end];
}

/** Items of one kind; what is indented below an item belongs to it, and one blank line may stand between items. */
function list(lines, at, depth) {
  const ordered = (match) => /\d/.test(match[2]);
  const first = ITEM.exec(lines[at]);
  const made = element(ordered(first) ? "ol" : "ul");
  if (ordered(first)) made.setAttribute("start", String(parseInt(first[2], 10)));
  let end = at;
  while (end < lines.length) {
    const match = ITEM.exec(lines[end]);
    if (!match || ordered(match) !== ordered(first) || RULE.test(lines[end])) break;
    const width = match[0].length;
    const inner = [lines[end++].slice(width)];
    while (end < lines.length && belongs(lines, end, match[1].length)) inner.push(dedent(lines[end++], width));
    made.append(element("li", {}, ...nodes(inner, depth + 1)));
    if (lines[end]?.trim() === "" && ITEM.test(lines[end + 1] ?? "")) end++;
  }
  return [made, end];
}

function belongs(lines, at, indent) {
  const isWithin = (line) => line !== undefined && /^ */.exec(line)[0].length >= indent + 2 && line.trim() !== "";
  if (lines[at].trim() === "") return isWithin(lines[at + 1]);
  return isWithin(lines[at]) || !interrupts(lines, at);
}

function startsTable(lines, at) {
  return lines[at].includes("|") && TABLE_RULE.test(lines[at + 1] ?? "") && lines[at + 1].includes("-");
}

function table(lines, at) {
  const row = (line, kind) =>
    element("tr", {}, ...cells(line).map((cell) => element(kind, {}, ...inline(cell))));
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end++;
  const body = lines.slice(at + 2, end).map((line) => row(line, "td"));
  const made = element("table", {}, element("thead", {}, row(lines[at], "th")), element("tbody", {}, ...body));
  return [element("div", { class: "wide", tabindex: "0" }, made), end];
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

/** Text with code, emphasis and links, as nodes. Each kind of mark that is never closed is looked for only once. */
function inline(text, depth = 0) {
  const made = [];
  const unclosed = new Set();
  let plain = 0;
  let at = 0;
  const flush = (end) => {
    if (end > plain) made.push(document.createTextNode(text.slice(plain, end)));
  };
  while (at < text.length) {
    const found = depth < DEPTH_MAX && mark(text, at, unclosed, depth);
    if (found) {
      flush(at);
      made.push(found.node);
      at = plain = found.end;
    } else {
      at += /^(`+|\*+|.)/s.exec(text.slice(at, at + 64))[0].length;
    }
  }
  flush(at);
  return made;
}

function mark(text, at, unclosed, depth) {
  const escaped = text[at] === "\\" && /[\\`*_{}[\]()#+\-.!|>~]/.test(text[at + 1] ?? "");
  if (escaped) return { node: document.createTextNode(text[at + 1]), end: at + 2 };
  if (text[at] === "`") return codeSpan(text, at, unclosed);
  if (text[at] === "[") return link(text, at, depth);
  for (const [sign, name] of [["**", "strong"], ["*", "em"]]) {
    if (!text.startsWith(sign, at) || unclosed.has(sign) || /\s/.test(text[at + sign.length] ?? " ")) continue;
    const end = closing(text, at + sign.length, sign);
    if (end < 0) unclosed.add(sign);
    else return { node: element(name, {}, ...inline(text.slice(at + sign.length, end), depth + 1)), end: end + sign.length };
  }
  return null;
}

/** Where the sign closes: behind something that is no blank, and not as half of a longer sign. */
function closing(text, from, sign) {
  for (let end = text.indexOf(sign, from); end >= 0; end = text.indexOf(sign, end + 1)) {
    const isAlone = sign.length === 2 || (text[end - 1] !== "*" && text[end + 1] !== "*");
    if (end > from && !/\s/.test(text[end - 1]) && isAlone) return end;
  }
  return -1;
}

function codeSpan(text, at, unclosed) {
  const sign = /^`{1,32}/.exec(text.slice(at, at + 32))[0];
  if (unclosed.has(sign) || text[at + sign.length] === "`") return null;
  let end = text.indexOf(sign, at + sign.length);
  while (end >= 0 && (text[end + sign.length] === "`" || text[end - 1] === "`")) end = text.indexOf(sign, end + 1);
  if (end < 0) {
    unclosed.add(sign);
    return null;
  }
  const inner = text.slice(at + sign.length, end).replace(/^ (.*[^ ].*) $/s, "$1");
  return { node: element("code", {}, inner), end: end + sign.length };
}

/** Links lead to the web only, and only when they are followed. */
function link(text, at, depth) {
  const match = /^\[([^\][\n]{1,500})\]\((https?:\/\/[^\s()<>"]{1,2000})\)/.exec(text.slice(at, at + 2600));
  if (!match) return null;
  const attributes = { href: match[2], target: "_blank", rel: "noopener noreferrer" };
  return { node: element("a", attributes, ...inline(match[1], depth + 1)), end: at + match[0].length };
}
