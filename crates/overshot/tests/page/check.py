"""Checks the page at `/` in a headless browser, as its users meet it.

    python check.py path/to/overshot path/to/chromium [--screenshots FOLDER]

Scripted servers play thinking, tool calls and slow answers; the built-in model gives one real answer.
"""

import argparse
import importlib.metadata
import pathlib
import re
import time

from harness import Chat, metric, playing, serving
from playwright.sync_api import sync_playwright

TOOLS = """[{"type": "function", "function": {"name": "read_meter", "parameters": {"type": "object",
  "properties": {"id": {"type": "string"}, "scale": {"type": "number"}}}}}]"""
CALL = [
    "Let me read the meter.",
    '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="read_meter">\n',
    '<｜DSML｜parameter name="id" string="true">north-<b>7</b></｜DSML｜parameter>\n',
    '<｜DSML｜parameter name="scale" string="false">0.5</｜DSML｜parameter>\n',
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
]
SHOWN = """A wheel turns when water **falls**, not when it *flows*:

1. Lead the water over the top.
2. Let it fall inside the buckets:
   - full on one side
   - empty on the other

```rust
fn power(flow_m3_s: f64, fall_m: f64) -> f64 {
    0.85 * 9.81 * 1000.0 * flow_m3_s * fall_m // watts
}
```

| wheel | efficiency |
|---|---|
| overshot | 85 % |
| undershot | 30 % |

See `power` for the rest."""
ON = " Each bucket carries its water down and gives up its weight before it empties into the tail race."
SLOW = [part for word in range(4000) for part in (f"word{word} ", {"delay_ms": 20})]


def words(text):
    """One piece a word."""
    return re.findall(r"\s*\S+\s*", text)


def check_parser(browser, overshot):
    """Events are the same wherever the stream was cut."""
    with playing(overshot, [["x"]]) as url, Chat(browser, url) as chat:
        found = chat.page.evaluate(
            r"""async () => {
              const { EventParser } = await import("./page/api.js");
              const text = ": hello\n\ndata: one\r\n\r\nevent: x\rdata:two\rdata: three\r\rid: 7\n\ndata\n\ndata: last\n";
              const found = new Set();
              for (let cut = 0; cut <= text.length; cut++) for (let next = cut; next <= text.length; next++) {
                const parser = new EventParser();
                const parts = [text.slice(0, cut), text.slice(cut, next), text.slice(next)];
                found.add(JSON.stringify(parts.flatMap((part) => parser.push(part))));
              }
              return [...found];
            }"""
        )
        assert found == ['["one","two\\nthree",""]'], found


def check_markdown(browser, overshot):
    """Text never becomes markup, a growing text ends as the whole one, and hostile text takes no time."""
    nasty = (
        '<img src=x onerror="document.title=1"> <script>1</script> [a](javascript:1) [b](https://example.org/?q=1)\n\n'
        "`<b>` **bold *both* ** *em* 2 * 3 * 4 \\*not\\* ``a ` b`` **open\n# Head `x`\n> quote\n> - item\n\n---\n"
        "```\n<i>\n```\n| a | b |\n|---|---|\n| <u> | `c` |\n\n- a\n\n  more\n- b\n    ```py\n    x\n    ```\n7. seven\n8. eight"
    )
    with playing(overshot, [["x"]]) as url, Chat(browser, url) as chat:
        whole, mixed, tags, hrefs = chat.page.evaluate(
            """async (texts) => {
              const { MarkdownView, element } = await import("./page/markdown.js");
              const seen = { tags: new Set(), hrefs: [] };
              let whole = "", mixed = "";
              for (const text of texts) {
                const once = element("div"), grown = element("div"), view = new MarkdownView(grown);
                new MarkdownView(once).show(text);
                for (let end = 1; end <= text.length; end++) view.show(text.slice(0, end));
                whole += once.innerHTML;
                mixed += grown.innerHTML;
                for (const node of once.querySelectorAll("*")) seen.tags.add(node.localName);
                for (const link of once.querySelectorAll("a")) seen.hrefs.push(link.href);
              }
              return [whole, mixed, [...seen.tags].sort(), seen.hrefs];
            }""",
            [nasty, SHOWN],
        )
        assert whole == mixed, f"{whole}\n{mixed}"
        assert not {"img", "script", "b", "i", "u"} & set(tags), tags
        assert {"strong", "em", "code", "pre", "table", "ol", "ul", "blockquote", "hr", "h3"} <= set(tags), tags
        assert hrefs == ["https://example.org/?q=1"], hrefs
        for text in ["`" * 20_000, "*" * 20_000, "`a" * 10_000, "**a " * 10_000, "*a" * 10_000, "[" * 20_000,
                     "> " * 5_000, "- " * 5_000, "|" * 10_000 + "\n" + "|-" * 5_000, "#" * 20_000, "a\n|" * 5_000]:
            started = time.monotonic()
            chat.page.evaluate(
                """async (text) => {
                  const { MarkdownView, element } = await import("./page/markdown.js");
                  new MarkdownView(element("div")).show(text);
                }""",
                text,
            )
            # No timing: what grows with the square of the text takes minutes here.
            assert time.monotonic() - started < 20, text[:4]


def check_stream(browser, overshot):
    """Two answers that never end are looked at on their way, a third one when it is whole."""
    whole = [*words("First I think about wheels."), "</think>", *words(SHOWN)]
    with playing(overshot, [SLOW, ["Thought.", "</think>", *SLOW], whole]) as url:
        with Chat(browser, url, motion="no-preference") as chat:
            page = chat.page
            chat.reads("model", "dsv4-mini")
            assert page.locator("#welcome").is_visible()
            chat.settings(thinking="high", system="Be brief.")
            chat.ask("How does a wheel turn?")
            chat.wait(".thought", "word3")
            assert chat.last(".thinking").get_attribute("open") is not None
            assert not chat.last(".answer").inner_text(), "thinking stands apart from the answer"
            chat.reads("running", "1")
            chat.wait(".note", "tok/s")
            assert chat.last().get_attribute("aria-busy") == "true"
            assert page.get_by_role("log").get_attribute("aria-live") == "polite"
            page.get_by_role("button", name="Stop").click()
            chat.wait(".note", "Stopped")

            chat.ask("And now?")
            chat.wait(".answer", "word3")
            assert chat.last(".thinking").get_attribute("open") is None
            assert chat.last(".thinking summary").inner_text().startswith("Thought ")
            assert chat.last(".thought").text_content() == "Thought."
            assert chat.last().get_attribute("aria-busy") == "true", "the text came in one piece"
            page.keyboard.press("Escape")
            chat.wait(".note", "Stopped")

            chat.ask("And whole?")
            chat.finished()
            assert re.search(r"^\d+ tokens( · [\d.,]+ tok/s)? · first after [\d.]+ s$", chat.last(".note").inner_text())
            assert chat.last(".thought").text_content() == "First I think about wheels."
            assert chat.last(".answer > ol > li").count() == 2 and chat.last("ol ul > li").count() == 2
            assert chat.last("pre code").inner_text().startswith("fn power(flow_m3_s: f64")
            assert chat.last("td").all_inner_texts() == ["overshot", "85 %", "undershot", "30 %"]
            assert "<strong>falls</strong>" in chat.last(".answer").inner_html()
            chat.reads("running", "0")
            sent = chat.sent[0]
            assert sent["reasoning_effort"] == "high" and sent["stream"] is True
            assert [message["role"] for message in sent["messages"]] == ["system", "user"]
            assert "temperature" not in sent and "tools" not in sent

            # A reload keeps settings and conversation.
            page.reload()
            assert chat.last("pre code").inner_text().startswith("fn power")
            page.click("#open-settings")
            assert page.input_value("#system") == "Be brief." and page.input_value("#thinking") == "high"


def check_copy(browser, overshot):
    with playing(overshot, [["```py\nx = 1\n```\n**done**"]]) as url, Chat(browser, url) as chat:
        chat.context.grant_permissions(["clipboard-read", "clipboard-write"])
        chat.ask("Copy?")
        chat.finished()
        for button, copied in [(".copy-code", "x = 1"), (".acts button:has-text('Copy')", "```py\nx = 1\n```\n**done**")]:
            chat.last(button).click()
            chat.last("button:has-text('Copied')").first.wait_for()
            assert chat.page.evaluate("navigator.clipboard.readText()") == copied


def check_tool_call(browser, overshot):
    lines = [CALL, ["The meter", " stands at 42."], ["Again 42."]]
    with playing(overshot, lines) as url, Chat(browser, url) as chat:
        page = chat.page
        chat.settings(tools="[{")
        page.click("#open-settings")
        assert page.locator("#settings-error").inner_text().startswith("Tools are no JSON")
        chat.page.click("#close-settings")
        chat.ask("What does the meter say?")
        chat.wait(".failure", "Tools are no JSON")
        assert not chat.sent
        chat.settings(tools=TOOLS)
        chat.last("button:has-text('Try again')").click()
        chat.wait(".call-state", "waits for its result")
        assert chat.last(".answer").inner_text() == "Let me read the meter."
        assert chat.last(".call-name").inner_text() == "read_meter"
        assert chat.last(".call-arguments").inner_text() == '{\n  "id": "north-<b>7</b>",\n  "scale": 0.5\n}'
        # The result's box has the focus; a new message has to wait for it.
        assert page.evaluate("document.activeElement.closest('.call') !== null")
        chat.ask("Never mind")
        assert len(chat.sent) == 1 and page.evaluate("document.activeElement.closest('.call') !== null")
        page.fill("#input", "")
        chat.last(".call textarea").fill('{"value": 42}')
        chat.last(".call textarea").press("Enter")
        chat.wait(".answer", "The meter stands at 42.")
        chat.finished()
        messages = chat.sent[1]["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
        [call] = messages[1]["tool_calls"]
        assert messages[2] == {"role": "tool", "tool_call_id": call["id"], "content": '{"value": 42}'}
        assert call["function"] == {"name": "read_meter", "arguments": '{"id": "north-<b>7</b>", "scale": 0.5}'}, call
        assert page.locator(".call-given").inner_text() == '{"value": 42}'
        chat.last(".again").click()
        chat.wait(".answer", "Again 42.")
        assert chat.sent[2]["messages"] == messages


def check_unparsed(browser, overshot):
    """What looked like a call and was none is shown as it came."""
    broken = ["Look: ", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="read_', "meter\n</｜DSML｜tool_calls>"]
    with playing(overshot, [broken]) as url, Chat(browser, url) as chat:
        chat.settings(tools=TOOLS)
        chat.ask("Go")
        chat.finished()
        assert "DSML" in chat.last(".unparsed").inner_text() and chat.last(".call").count() == 0
        assert "DSML" not in chat.last(".answer").inner_text()


def check_errors(browser, overshot):
    with playing(overshot, [["Fine."]]) as url, Chat(browser, url) as chat:
        chat.settings(temperature="-1")
        chat.ask("Hello?")
        chat.wait(".failure", "temperature is -1: use a number of at least 0")
        assert chat.page.locator(".failure").get_attribute("role") == "alert"
        chat.settings(temperature="0.5")
        chat.last("button:has-text('Try again')").click()
        chat.wait(".answer", "Fine.")
        assert chat.sent[-1]["temperature"] == 0.5 and chat.page.locator(".turn").count() == 2
        chat.settings(**{"max-tokens": "1"})
        chat.ask("Cut?")
        chat.wait(".note", "Cut at the token limit")
    with playing(overshot, [SLOW]) as url:
        with Chat(browser, url) as chat:
            chat.complaints = Expected(chat.complaints, "ERR_")
            chat.ask("Hello?")
            chat.wait(".answer", "word3")
            server_dies(chat)
    print("   (a server that ends is seen)", flush=True)


class Expected(list):
    """A list of complaints that leaves one kind out."""

    def __init__(self, already, kind):
        super().__init__(already)
        self.kind = kind

    def append(self, complaint):
        if self.kind not in complaint:
            super().append(complaint)


def server_dies(chat):
    chat.page.route("**/*", lambda route: route.abort())
    chat.reads("trouble", "The server cannot be reached.")
    chat.page.keyboard.press("Escape")
    chat.wait(".note", "Stopped")
    chat.ask("Still there?")
    chat.wait(".failure", "The server cannot be reached.")


def check_stop(browser, overshot):
    with playing(overshot, [SLOW, SLOW, ["After", "wards."]]) as url, Chat(browser, url) as chat:
        for stop in (lambda: chat.page.keyboard.press("Escape"), lambda: chat.page.click("#send")):
            chat.ask("Count")
            chat.wait(".answer", "word3")
            assert metric(url, "overshot_requests_running") == 1
            stop()
            chat.wait(".note", "Stopped")
            chat.reads("running", "0")
            assert metric(url, "overshot_requests_running") == 0
        chat.ask("Go on")
        chat.wait(".answer", "Afterwards.")
        roles = [message["role"] for message in chat.sent[-1]["messages"]]
        assert roles == ["user", "assistant", "user", "assistant", "user"], roles


def check_keyboard(browser, overshot):
    with playing(overshot, [["One."], ["Two."], ["Three."]]) as url, Chat(browser, url) as chat:
        page = chat.page
        focused = lambda: page.evaluate("document.activeElement.id || document.activeElement.className")
        assert focused() == "input"
        page.keyboard.type("first")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("second")
        page.keyboard.press("Enter")
        chat.wait(".answer", "One.")
        chat.finished()
        assert chat.sent[0]["messages"] == [{"role": "user", "content": "first\nsecond"}]
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("/")
        assert focused() == "input" and page.input_value("#input") == ""
        page.keyboard.type("a/b")
        assert page.input_value("#input") == "a/b"
        page.fill("#input", "")

        page.locator(".edit:visible").click()
        page.keyboard.press("Escape")
        assert page.locator(".said").inner_text() == "first\nsecond"
        page.keyboard.press("Enter")
        page.locator(".rewrite").fill("only")
        page.keyboard.press("Enter")
        chat.wait(".answer", "Two.")
        chat.finished()
        assert chat.sent[1]["messages"] == [{"role": "user", "content": "only"}]
        assert page.locator(".turn").count() == 2

        page.keyboard.press("Control+k")
        assert page.locator(".turn").count() == 0 and page.locator("#welcome").is_visible() and focused() == "input"
        page.click("#bring-back")
        assert chat.last(".answer").inner_text() == "Two." and page.locator(".turn").count() == 2

        # Whatever can be pressed can be reached, and shows that it was.
        page.click("#open-settings")
        assert focused() == "system" and page.get_attribute("#open-settings", "aria-expanded") == "true"
        page.keyboard.press("Escape")
        assert page.locator("#settings").is_hidden() and focused() == "open-settings"
        page.evaluate("document.activeElement.blur()")
        reached = []
        for _ in range(12):
            page.keyboard.press("Tab")
            ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            reached.append(focused())
            assert ring != "none" or reached[-1] == "scroll" or not reached[-1], f"{reached[-1]} shows no focus"
        assert {"new-chat", "open-settings", "input", "send"} <= set(reached), reached
        unnamed = page.evaluate(
            "[...document.querySelectorAll('button, input, select, textarea')].filter((control) =>"
            " !control.labels?.length && !control.ariaLabel && !control.textContent.trim()).map((c) => c.outerHTML)"
        )
        assert not unnamed, unnamed


def check_key(browser, overshot):
    """A server that wants a key is asked again with the one that was typed."""
    with playing(overshot, [["Welcome."]]) as url, Chat(browser, url) as chat:
        def guard(route):
            if route.request.headers.get("authorization") == "Bearer sesame":
                return route.continue_()
            body = '{"error":{"message":"no or another key","type":"x","param":null,"code":"invalid_api_key"}}'
            return route.fulfill(status=401, content_type="application/json", body=body)

        for path in ("**/v1/**", "**/metrics"):
            chat.page.route(path, guard)
        chat.page.reload()
        dialog = chat.page.get_by_role("dialog", name="This server wants a key")
        dialog.get_by_label("API key").fill("wrong")
        dialog.get_by_role("button", name="Use this key").click()
        dialog.get_by_text("no or another key").wait_for()
        dialog.get_by_label("API key").fill("sesame")
        dialog.get_by_role("button", name="Use this key").click()
        dialog.wait_for(state="hidden")
        chat.ask("Hello?")
        chat.wait(".answer", "Welcome.")
        chat.page.reload()
        assert chat.page.locator("#model").filter(has_text="dsv4-mini").is_visible() and dialog.is_hidden()


def check_model(browser, overshot):
    with serving(overshot) as url, Chat(browser, url) as chat:
        chat.settings(temperature="0")
        chat.ask("What is the capital of France?")
        chat.finished()
        assert chat.last(".answer").inner_text() == "The capital of France is Paris."
        assert chat.last(".note").inner_text().startswith("10 tokens")


CONTRASTS = """() => {
  const style = getComputedStyle(document.documentElement);
  const probe = document.body.appendChild(document.createElement("span"));
  const light = (name) => {
    probe.style.color = `var(--${name})`;
    const channels = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map((value) => value / 255);
    const linear = channels.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const ratios = {};
  for (const pair of ["ink ground", "ink raised", "ink field", "muted ground", "muted raised", "muted field", "muted tint",
                      "accent ground", "accent tint", "on-accent accent", "bad bad-tint", "bad ground", "edge field"]) {
    const [a, b] = pair.split(" ").map(light).sort((x, y) => y - x);
    ratios[pair] = (a + 0.05) / (b + 0.05);
  }
  probe.remove();
  return ratios;
}"""


def check_looks(browser, overshot, screenshots=None):
    """Narrow and wide, light and dark: while an answer comes, with a tool call, an error, and the settings."""
    thought = words("The user asks about wheels. An overshot wheel takes the water from above, so it uses the fall.")
    endless = [part for word in words(ON) * 300 for part in ({"delay_ms": 20}, word)]
    lines = [[*thought, *endless], [*thought, "</think>", *words(SHOWN), *endless], ["No need.", "</think>", *CALL]]
    grounds = set()
    for width, height in [(360, 740), (1440, 900)]:
        for scheme in ("light", "dark"):
            with playing(overshot, lines) as url, Chat(browser, url, width=width, height=height, scheme=scheme) as chat:
                def look(name):
                    assert chat.overflow() <= 0, f"{name} at {width}: {chat.overflow()} px too wide"
                    if screenshots:
                        chat.page.screenshot(path=screenshots / f"{name}-{width}-{scheme}.png")

                grounds.add((scheme, chat.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")))
                for pair, ratio in chat.page.evaluate(CONTRASTS).items():
                    least = 3 if pair.startswith("edge") else 4.5
                    assert ratio >= least, f"{pair} in {scheme}: {ratio:.2f}"
                chat.page.locator("#model").filter(has_text="dsv4-mini").wait_for()
                look("welcome")
                chat.settings(thinking="high", tools=TOOLS)
                chat.ask("How does an overshot wheel turn, and how much power does it give?")
                chat.wait(".thought", "takes the water")
                look("thinking")
                chat.page.keyboard.press("Escape")
                chat.wait(".note", "Stopped")
                chat.last(".again").click()
                chat.wait(".answer", "gives up its weight")
                chat.last(".thinking summary").click()
                chat.reads("running", "1")
                chat.page.evaluate("document.getElementById('scroll').scrollTop = 1e9")
                look("streaming")
                chat.page.keyboard.press("Escape")
                chat.wait(".note", "Stopped")
                chat.page.evaluate("document.getElementById('scroll').scrollTop = 0")
                look("stopped")
                chat.page.keyboard.press("Control+k")
                chat.ask("What does meter north-7 say?")
                chat.wait(".call-state", "waits for its result")
                look("tool-call")
                chat.last(".call textarea").fill('{"value": 42}')
                chat.settings(temperature="-1")
                chat.last(".send-results").click()
                chat.wait(".failure", "temperature is -1")
                look("error")
                chat.page.click("#open-settings")
                look("settings")
                other = "dark" if scheme == "light" else "light"
                chat.page.locator(f".themes span:has-text('{other.title()}')").click()
                grounds.add((other, chat.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")))
    assert len(grounds) == 2, f"schemes by system and by hand differ: {grounds}"


CHECKS = [check_parser, check_markdown, check_stream, check_copy, check_tool_call, check_unparsed, check_errors, check_stop,
          check_keyboard, check_key, check_model]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("overshot")
    arguments.add_argument("chromium")
    arguments.add_argument("--screenshots", type=pathlib.Path)
    arguments.add_argument("--only", default="")
    given = arguments.parse_args()
    if given.screenshots:
        given.screenshots.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        # Whoever runs this may be root, who gets no sandbox; the pages are our own.
        browser = driver.chromium.launch(executable_path=given.chromium, args=["--no-sandbox"])
        for check in CHECKS:
            if given.only in check.__name__:
                check(browser, given.overshot)
                print(f"ok: {check.__name__.removeprefix('check_').replace('_', ' ')}", flush=True)
        if given.only in "check_looks":
            check_looks(browser, given.overshot, given.screenshots)
            print("ok: looks", flush=True)
        driven_by = f"playwright {importlib.metadata.version('playwright')}"
        print(f"the page in Chromium {browser.version}, {driven_by}: all checks passed")


if __name__ == "__main__":
    main()
