"""Checks the server with Anthropic's own Python client, as its users meet it.

    python anthropic_python.py path/to/overshot

Most servers here play a script. The built-in model is held to schemas, and the session that docs/messages.md shows is held
with it again, line by line.
"""

import contextlib
import sys
import threading

import anthropic

import serving
from picture import Picture
from serving import CALLED, CALLS

TOOL = {"name": "read_meter", "description": "Reads.", "input_schema": serving.PARAMETERS}
QUESTION = [{"role": "user", "content": "Hello?"}]
THINKING = {"type": "enabled", "budget_tokens": 1024}


@contextlib.contextmanager
def playing(overshot, answers, *flags):
    """How messages are asked for of a server that plays these answers, with a client of it."""
    with serving.playing(overshot, answers, *flags) as url:
        yield asking(url)


def asking(url):
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    name = client.models.list().data[0].id

    def ask(of=client.messages.create, **fields):
        return of(**{"model": name, "max_tokens": 1000, "messages": QUESTION, **fields})

    return client, ask


def kinds(message):
    return [block.type for block in message.content]


def check_answers(overshot):
    answers = [["One ", "two."], ["Thought.", "</think>", "Said."], ["One END two"], ["One ", "two"]]
    with playing(overshot, answers) as (_, ask):
        message = ask(system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}])
        assert (message.type, message.role, message.stop_reason) == ("message", "assistant", "end_turn")
        assert kinds(message) == ["text"] and message.content[0].text == "One two."
        assert message.usage.input_tokens > 0 and message.usage.output_tokens > 0 and message._request_id
        message = ask(thinking=THINKING, metadata={"user_id": "x"})
        assert kinds(message) == ["thinking", "text"] and message.content[0].signature
        assert (message.content[0].thinking, message.content[1].text) == ("Thought.", "Said.")
        assert message.usage.output_tokens_details.thinking_tokens > 0
        message = ask(stop_sequences=["END"])
        assert (message.content[0].text, message.stop_reason) == ("One ", "stop_sequence")
        assert message.stop_sequence == "END"
        assert ask(max_tokens=1).stop_reason == "max_tokens"


def check_stream(overshot):
    # A character whose bytes come in two steps is delivered whole.
    pieces = ["Think", "ing.", "</think>", "na", {"hex": "c3"}, {"hex": "af"}, "ve"]
    with playing(overshot, [pieces]) as (client, ask):
        with ask(client.messages.stream, thinking=THINKING) as stream:
            events = list(stream)
            message = stream.get_final_message()
        assert (message.content[0].thinking, message.content[1].text) == ("Thinking.", "naïve")
        assert message.content[0].signature and message.stop_reason == "end_turn"
        assert message.usage.input_tokens > 0 and message.usage.output_tokens > 0
        assert "".join(event.text for event in events if event.type == "text") == "naïve"
        assert sum(event.type == "thinking" for event in events) > 1
        assert (events[0].type, events[-1].type) == ("message_start", "message_stop")


def check_tools(overshot):
    def called(message):
        assert (kinds(message), message.stop_reason) == (["text", "tool_use", "tool_use"], "tool_use")
        assert message.content[0].text == "Let me look." and message.content[1].id != message.content[2].id
        return [(block.name, block.input) for block in message.content[1:]]

    with playing(overshot, [CALLS, CALLS, CALLS, ["Done."]]) as (client, ask):
        message = ask(tools=[TOOL], tool_choice={"type": "auto"})
        assert called(message) == CALLED
        for eager in [False, True]:
            with ask(client.messages.stream, tools=[{**TOOL, "eager_input_streaming": eager}]) as stream:
                pieces = sum(event.type == "input_json" for event in stream)
                assert called(stream.get_final_message()) == CALLED
            assert (pieces > 2) == eager, pieces

        # The calls and their results go back as they came.
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": "7"} for block in message.content[1:]]
        conversation = [
            *QUESTION,
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": results},
        ]
        assert ask(tools=[TOOL], messages=conversation).content[0].text == "Done."


def check_structured(overshot):
    with serving.serving(overshot) as url:
        client, ask = asking(url)
        for thinking in [{"type": "disabled"}, THINKING]:
            message = ask(client.messages.parse, output_format=Picture, thinking=thinking)
            assert isinstance(message.parsed_output, Picture), message
        schema = Picture.model_json_schema()
        form = {"type": "json_schema", "schema": schema}
        Picture.model_validate_json(ask(output_config={"format": form}).content[0].text)
        tools = [{"name": name, "input_schema": schema, "strict": True} for name in ["draw", "erase"]]
        for choice in [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "erase"}]:
            [call] = ask(tools=tools, tool_choice=choice).content
            assert call.name == choice.get("name", call.name)
            Picture.model_validate(call.input)


def check_count(overshot):
    with playing(overshot, [["Hello."]]) as (client, ask):
        fields = {"system": "Be brief.", "tools": [TOOL], "thinking": THINKING}
        name = client.models.list().data[0].id
        counted = client.messages.count_tokens(model=name, messages=QUESTION, **fields)
        assert counted.input_tokens == ask(**fields).usage.input_tokens


def check_errors(overshot):
    slow = [["word ", {"delay_ms": 50}] * 2000]
    limits = ["--max-batch", "1", "--max-queue", "1", "--max-context", "4000", "--drain-seconds", "0"]
    with playing(overshot, slow, *limits) as (client, ask):

        def refused(kind, error_type, **fields):
            try:
                ask(**fields)
            except anthropic.APIStatusError as error:
                assert isinstance(error, kind) and error.request_id, repr(error)
                assert error.body["error"]["type"] == error_type, error.body
                return error
            raise AssertionError(f"{fields} was not refused")

        refused(anthropic.NotFoundError, "not_found_error", model="claude-sonnet")
        error = refused(anthropic.BadRequestError, "invalid_request_error", extra_body={"temperature": -1})
        assert "temperature" in error.body["error"]["message"]
        long = [{"role": "user", "content": "a b " * 9000}]
        error = refused(anthropic.BadRequestError, "invalid_request_error", messages=long)
        assert error.body["error"]["message"].startswith("prompt is too long"), error.body
        image = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]
        refused(anthropic.BadRequestError, "invalid_request_error", messages=image)

        running = ask(stream=True)
        next(iter(running))
        threading.Thread(target=wait_for_answer, args=(ask,), daemon=True).start()
        while "overshot_requests_waiting 1" not in client._client.get(f"{client.base_url}/metrics").text:
            pass
        error = refused(anthropic.RateLimitError, "rate_limit_error")
        assert int(error.response.headers["retry-after"]) > 0
        running.close()


def wait_for_answer(ask):
    """As long as the server lives."""
    with contextlib.suppress(anthropic.APIError):
        ask()


def check_session(overshot):
    serving.hold_session(overshot, "messages.md")


def main():
    checks = [check_answers, check_stream, check_tools, check_structured, check_count, check_errors, check_session]
    serving.run(sys.argv[1], f"anthropic {anthropic.__version__}", checks)


if __name__ == "__main__":
    main()
