"""Checks the server with OpenAI's own Python client, as its users meet it.

    python client.py path/to/overshot

Starts two servers: one plays a script, so that every piece of an answer is known; the other runs the built-in model,
and the session that docs/openai-python.md shows is held with it again, line by line.
"""

import contextlib
import doctest
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

import openai

REPOSITORY = pathlib.Path(__file__).resolve().parents[4]
SESSION = REPOSITORY / "docs" / "openai-python.md"

TOOL = {
    "type": "function",
    "function": {
        "name": "read_meter",
        "parameters": {
            "type": "object",
            "properties": {"id": {"type": "string"}, "scale": {"type": "number"}, "on": {"type": "boolean"}},
        },
    },
}
QUESTION = [{"role": "user", "content": "Hello?"}]


@contextlib.contextmanager
def serving(overshot, *flags):
    """The URL of a server that runs as long as the block."""
    command = [overshot, "serve", "--port", "0", *flags]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        line = server.stdout.readline().strip()
        assert line.startswith("listening on http://"), f"no server: {line!r}"
        yield line.removeprefix("listening on ")
    finally:
        server.terminate()
        server.wait(30)


def script(*lines):
    return "".join(json.dumps({"chunks": line}) + "\n" for line in lines)


@contextlib.contextmanager
def playing(overshot, lines, *flags):
    """A client of a server that plays these answers."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write(script(*lines))
        file.flush()
        with serving(overshot, "--backend", f"scripted:{file.name}", *flags) as url:
            yield openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)


def model(client):
    return client.models.list().data[0].id


def check_chat(overshot):
    with playing(overshot, [["One ", "two."], ["Thought.", "</think>", "Said."]]) as client:
        name = model(client)
        assert client.models.retrieve(name).id == name
        answer = client.chat.completions.create(model=name, messages=QUESTION)
        assert answer.object == "chat.completion" and answer.model == name
        assert answer.choices[0].message.content == "One two."
        assert answer.choices[0].message.role == "assistant"
        assert answer.choices[0].finish_reason == "stop"
        usage = answer.usage
        assert usage.prompt_tokens > 0 and usage.completion_tokens > 0
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        answer = client.chat.completions.create(model=name, messages=QUESTION, reasoning_effort="high")
        assert answer.choices[0].message.reasoning_content == "Thought."
        assert answer.choices[0].message.content == "Said."
        assert answer.usage.completion_tokens_details.reasoning_tokens > 0


def check_stream(overshot):
    # A character whose bytes come in two steps is delivered whole.
    with playing(overshot, [["Think", "ing.", "</think>", "na", {"hex": "c3"}, {"hex": "af"}, "ve"]]) as client:
        stream = client.chat.completions.create(
            model=model(client),
            messages=QUESTION,
            reasoning_effort="high",
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        with_choice = [chunk for chunk in chunks if chunk.choices]
        deltas = [chunk.choices[0].delta for chunk in with_choice]
        assert deltas[0].role == "assistant"
        reasoning = [delta.reasoning_content for delta in deltas if getattr(delta, "reasoning_content", None)]
        assert "".join(reasoning) == "Thinking." and len(reasoning) > 1
        assert "".join(delta.content or "" for delta in deltas) == "naïve"
        assert [chunk.choices[0].finish_reason for chunk in with_choice if chunk.choices[0].finish_reason] == ["stop"]
        assert len({chunk.id for chunk in chunks}) == 1
        assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0


def check_tools(overshot):
    call = [
        "Let me look.",
        "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"read_meter\">\n",
        "<｜DSML｜parameter name=\"id\" string=\"true\">né \"q\"</｜DSML｜parameter>\n",
        "<｜DSML｜parameter name=\"scale\" string=\"false\">0.5</｜DSML｜parameter>\n",
        "<｜DSML｜parameter name=\"on\" string=\"false\">true</｜DSML｜parameter>\n",
        "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"read_meter\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ]
    expected = [("read_meter", {"id": "né \"q\"", "scale": 0.5, "on": True}), ("read_meter", {})]
    with playing(overshot, [call, call, ["Done."]]) as client:
        name = model(client)
        answer = client.chat.completions.create(model=name, messages=QUESTION, tools=[TOOL])
        message = answer.choices[0].message
        assert message.content == "Let me look." and answer.choices[0].finish_reason == "tool_calls"
        calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]
        assert calls == expected, calls
        assert len({call.id for call in message.tool_calls}) == 2

        assembled, finish_reasons, content = {}, [], ""
        for chunk in client.chat.completions.create(model=name, messages=QUESTION, tools=[TOOL], stream=True):
            choice = chunk.choices[0]
            content += choice.delta.content or ""
            finish_reasons += [choice.finish_reason] if choice.finish_reason else []
            for delta in choice.delta.tool_calls or []:
                call = assembled.setdefault(delta.index, {"id": delta.id, "name": delta.function.name, "arguments": ""})
                call["arguments"] += delta.function.arguments or ""
        calls = [(call["name"], json.loads(call["arguments"])) for _, call in sorted(assembled.items())]
        assert (calls, content, finish_reasons) == (expected, "Let me look.", ["tool_calls"])
        assert all(call["id"] for call in assembled.values())

        # The calls and their results go back as they came.
        results = [{"role": "tool", "tool_call_id": call.id, "content": "7"} for call in message.tool_calls]
        conversation = [*QUESTION, message.model_dump(exclude_none=True), *results]
        answer = client.chat.completions.create(model=name, messages=conversation, tools=[TOOL])
        assert answer.choices[0].message.content == "Done."


def check_choices_logprobs_stops(overshot):
    with playing(overshot, [["First."], ["Second."]]) as client:
        name = model(client)
        answer = client.chat.completions.create(model=name, messages=QUESTION, n=2)
        assert sorted(choice.message.content for choice in answer.choices) == ["First.", "Second."]
        assert [choice.index for choice in answer.choices] == [0, 1]
        texts = {0: "", 1: ""}
        for chunk in client.chat.completions.create(model=name, messages=QUESTION, n=2, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        assert sorted(texts.values()) == ["First.", "Second."]

        answer = client.chat.completions.create(model=name, messages=QUESTION, logprobs=True, top_logprobs=3)
        tokens = answer.choices[0].logprobs.content
        # A script's tokens are certain.
        assert "".join(token.token for token in tokens) == "First." and all(token.logprob == 0 for token in tokens)
        assert all(token.top_logprobs[0].token == token.token for token in tokens)

        answer = client.chat.completions.create(model=name, messages=QUESTION, stop=["con", "d"])
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Se", "stop")
        answer = client.chat.completions.create(model=name, messages=QUESTION, max_tokens=1)
        assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 1
        answer = client.completions.create(model=name, prompt="Say")
        assert (answer.object, answer.choices[0].text) == ("text_completion", "Second.")


def check_errors(overshot):
    slow = [["word ", {"delay_ms": 50}] * 2000]
    limits = ["--max-batch", "1", "--max-queue", "1", "--max-context", "4000", "--drain-seconds", "0"]
    with playing(overshot, slow, *limits) as client:
        name = model(client)
        chat = client.chat.completions

        def refused(kind, code, **fields):
            try:
                chat.create(**{"model": name, "messages": QUESTION, **fields})
            except openai.APIStatusError as error:
                assert type(error) is kind and error.code == code and error.message, repr(error)
                return error
            raise AssertionError(f"{fields} was not refused")

        assert refused(openai.NotFoundError, "model_not_found", model="no-such-model").param == "model"
        assert refused(openai.BadRequestError, "invalid_value", temperature=-1).param == "temperature"
        refused(openai.BadRequestError, "invalid_value", messages=[])
        refused(openai.BadRequestError, "context_length_exceeded", messages=[{"role": "user", "content": "a b " * 9000}])
        try:
            client.models.retrieve("no-such-model")
            raise AssertionError("no-such-model was found")
        except openai.NotFoundError as error:
            assert error.code == "model_not_found"

        running = chat.create(model=name, messages=QUESTION, stream=True)
        next(iter(running))
        threading.Thread(target=wait_for_answer, args=(chat, name), daemon=True).start()
        while "overshot_requests_waiting 1" not in metrics(client):
            pass
        error = refused(openai.RateLimitError, "queue_full")
        assert int(error.response.headers["retry-after"]) > 0
        running.close()


def wait_for_answer(chat, name):
    """As long as the server lives."""
    with contextlib.suppress(openai.APIError):
        chat.create(model=name, messages=QUESTION)


def metrics(client):
    url = client.base_url.copy_with(path="/metrics")
    return client._client.get(url).text


def check_session(overshot):
    """Holds the documented session again; every line of output must come as shown."""
    blocks = re.findall(r"^```python\n(.*?)^```$", SESSION.read_text(), re.DOTALL | re.MULTILINE)
    assert blocks, f"{SESSION} shows no session"
    with serving(overshot) as url:
        text = "\n".join(blocks).replace("http://127.0.0.1:8000", url)
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        session = doctest.DocTestParser().get_doctest(text, {}, SESSION.name, str(SESSION), 0)
        outcome = doctest.DocTestRunner(optionflags=flags).run(session)
    assert outcome.failed == 0, f"{outcome.failed} of {outcome.attempted} examples"


def main():
    overshot = sys.argv[1]
    checks = [check_chat, check_stream, check_tools, check_choices_logprobs_stops, check_errors, check_session]
    for check in checks:
        check(overshot)
        print(f"ok: {check.__name__.removeprefix('check_').replace('_', ', ')}", flush=True)
    print(f"openai-python {openai.__version__}: {len(checks)} groups of checks passed")


if __name__ == "__main__":
    main()
