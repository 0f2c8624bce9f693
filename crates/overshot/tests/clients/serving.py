"""What the checks of all clients have in common: servers of their own, scripted answers, documented sessions."""

import contextlib
import doctest
import json
import pathlib
import re
import subprocess
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[4]

# What the scripted model writes to call a tool twice, and what a client must make of it.
CALLS = [
    "Let me look.",
    "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"read_meter\">\n",
    "<｜DSML｜parameter name=\"id\" string=\"true\">né \"q\"</｜DSML｜parameter>\n",
    "<｜DSML｜parameter name=\"scale\" string=\"false\">0.5</｜DSML｜parameter>\n",
    "<｜DSML｜parameter name=\"on\" string=\"false\">true</｜DSML｜parameter>\n",
    "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"read_meter\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
]
CALLED = [("read_meter", {"id": "né \"q\"", "scale": 0.5, "on": True}), ("read_meter", {})]
PARAMETERS = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "scale": {"type": "number"}, "on": {"type": "boolean"}},
}


@contextlib.contextmanager
def serving(overshot, *flags):
    """The URL of a server that runs as long as the block; what it computes does not depend on this machine's GPUs."""
    backend = () if "--backend" in flags else ("--backend", "cpu")
    command = [overshot, "serve", "--port", "0", *backend, *flags]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        line = server.stdout.readline().strip()
        assert line.startswith("listening on http://"), f"no server: {line!r}"
        yield line.removeprefix("listening on ")
    finally:
        server.terminate()
        server.wait(30)


@contextlib.contextmanager
def playing(overshot, answers, *flags):
    """The URL of a server that plays these answers, each a list of chunks."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps({"chunks": chunks}) + "\n" for chunks in answers)
        file.flush()
        with serving(overshot, "--backend", f"scripted:{file.name}", *flags) as url:
            yield url


def hold_session(overshot, document):
    """Holds a documented session again; every line of output must come as shown."""
    path = REPOSITORY / "docs" / document
    blocks = re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
    assert blocks, f"{path} shows no session"
    with serving(overshot) as url:
        text = "\n".join(blocks).replace("http://127.0.0.1:8000", url)
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        session = doctest.DocTestParser().get_doctest(text, {}, path.name, str(path), 0)
        outcome = doctest.DocTestRunner(optionflags=flags).run(session)
    assert outcome.failed == 0, f"{outcome.failed} of {outcome.attempted} examples"


def run(overshot, client, checks):
    for check in checks:
        check(overshot)
        print(f"ok: {check.__name__.removeprefix('check_').replace('_', ', ')}", flush=True)
    print(f"{client}: {len(checks)} groups of checks passed")
