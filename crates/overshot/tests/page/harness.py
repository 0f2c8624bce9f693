"""What the checks of the page stand on: servers that play scripts, and a browser page that is watched.

A page that asks another host for anything, logs an error or lets an exception escape fails its check.
"""

import json
import pathlib
import re
import sys
import urllib.parse
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "clients"))
import serving as servers

# Longer than anything here may take on a busy machine.
PATIENCE_MS = 30_000


# Nobody waits for an answer that a check has left.
AT_ONCE = ("--drain-seconds", "0")


def serving(overshot, *flags):
    return servers.serving(overshot, *AT_ONCE, *flags)


def playing(overshot, answers, *flags):
    return servers.playing(overshot, answers, *AT_ONCE, *flags)


def metric(url, name):
    """One sample of /metrics, asked for beside the browser."""
    with urllib.request.urlopen(url + "/metrics") as response:
        for line in response.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
    raise AssertionError(f"/metrics has no {name}")


class Chat:
    """The page as its user meets it."""

    def __init__(self, browser, url, *, width=1024, height=800, scheme="light", motion="reduce"):
        self.url = url
        size = {"width": width, "height": height}
        self.context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion=motion)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.complaints = []
        self.sent = []
        self.page.on("request", self._requested)
        self.page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        self.page.on("console", self._logged)
        self.page.goto(url)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.context.close()
        if kind is None:
            assert not self.complaints, self.complaints

    def _requested(self, request):
        host = urllib.parse.urlsplit(request.url).netloc
        if host != urllib.parse.urlsplit(self.url).netloc:
            self.complaints.append(f"asked another host: {request.url}")
        if request.url.endswith("/chat/completions"):
            self.sent.append(json.loads(request.post_data))

    def _logged(self, message):
        # Browsers log every refusal of a server as an error; that it is shown is checked where it is provoked.
        if message.type in ("error", "warning") and "the server responded with a status of" not in message.text:
            self.complaints.append(f"{message.type}: {message.text}")

    def ask(self, text):
        self.page.fill("#input", text)
        self.page.press("#input", "Enter")

    def settings(self, **values):
        """Fills fields of the side panel, by the names of their ids."""
        self.page.click("#open-settings")
        for name, value in values.items():
            field = self.page.locator(f"#{name}")
            if name == "thinking":
                field.select_option(value)
            else:
                field.fill(value)
        self.page.click("#close-settings")

    def last(self, selector=""):
        return self.page.locator(f".turn:last-child {selector}".strip())

    def wait(self, selector, text):
        """Until the last turn shows this text there."""
        self.last(selector).filter(has_text=text).first.wait_for()

    def reads(self, name, text):
        """Until the element with this id says exactly this."""
        self.page.locator(f"#{name}", has_text=re.compile(f"^{re.escape(text)}$")).wait_for()

    def finished(self):
        self.page.locator('.turn:last-child[aria-busy="false"]').wait_for()

    def overflow(self):
        """How far the page is wider than its window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
