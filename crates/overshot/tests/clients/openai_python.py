"""Checks the server with OpenAI's own Python client, as its users meet it.

    python openai_python.py path/to/overshot

Most servers here play a script, so that every piece of an answer is known. The built-in model is held to schemas, and the
session that docs/openai-python.md shows is held with it again, line by line.
"""

import contextlib
import json
import sys
import threading

import openai

import serving
from picture import Picture
from serving import CALLED, CALLS

TOOL = {"type": "function", "function": {"name": "read_meter", "parameters": serving.PARAMETERS}}
QUESTION = [{"role": "user", "content": "Hello?"}]


@contextlib.contextmanager
def playing(overshot, answers, *flags):
    """A client of a server that plays these answers."""
    with serving.playing(overshot, answers, *flags) as url:
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
    with playing(overshot, [CALLS, CALLS, ["Done."]]) as client:
        name = model(client)
        answer = client.chat.completions.create(model=name, messages=QUESTION, tools=[TOOL])
        message = answer.choices[0].message
        assert message.content == "Let me look." and answer.choices[0].finish_reason == "tool_calls"
        calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]
        assert calls == CALLED, calls
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
        assert (calls, content, finish_reasons) == (CALLED, "Let me look.", ["tool_calls"])
        assert all(call["id"] for call in assembled.values())

        # The calls and their results go back as they came.
        results = [{"role": "tool", "tool_call_id": call.id, "content": "7"} for call in message.tool_calls]
        conversation = [*QUESTION, message.model_dump(exclude_none=True), *results]
        answer = client.chat.completions.create(model=name, messages=conversation, tools=[TOOL])
        assert answer.choices[0].message.content == "Done."


METER = {"type": "function", "strict": False, **TOOL["function"]}
PATCH = {"type": "custom", "name": "patch"}
MIXED = [
    "Thinking.",
    "</think>Let me look.",
    "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"read_meter\">\n",
    "<｜DSML｜parameter name=\"id\" string=\"true\">né \"q\"</｜DSML｜parameter>\n</｜DSML｜invoke>\n",
    "<｜DSML｜invoke name=\"patch\">\n<｜DSML｜parameter name=\"input\" string=\"true\">+a\n</｜DSML｜parameter>\n",
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
]


def check_responses(overshot):
    with playing(overshot, [["One ", "two."], MIXED, MIXED, ["Done."], ["Done."]]) as client:
        name = model(client)
        answer = client.responses.create(model=name, input="Hello?", metadata={"a": "b"})
        assert (answer.output_text, answer.status, answer.error) == ("One two.", "completed", None)
        assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
        assert client.responses.retrieve(answer.id).model_dump() == answer.model_dump()
        asked = client.responses.input_items.list(answer.id).data
        assert [part.text for item in asked for part in item.content] == ["Hello?"]

        fields = {"model": name, "input": "Look.", "tools": [METER, PATCH], "reasoning": {"effort": "high"}}
        answer = client.responses.create(**fields)
        thinking, text, call, patch = answer.output
        assert [part.text for part in thinking.content] == ["Thinking."] and text.content[0].text == "Let me look."
        assert (call.name, json.loads(call.arguments)) == ("read_meter", {"id": "né \"q\""})
        assert (patch.type, patch.input) == ("custom_tool_call", "+a\n")

        with client.responses.stream(**fields) as stream:
            events = list(stream)
            streamed = stream.get_final_response()
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Let me look."
        new = {"id", "call_id", "parsed", "parsed_arguments"}
        assert [item.model_dump(exclude=new) | {"content": None} for item in streamed.output] == [
            item.model_dump(exclude=new) | {"content": None} for item in answer.output
        ]

        results = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "7"},
            {"type": "custom_tool_call_output", "call_id": patch.call_id, "output": "ok"},
        ]
        tools = {"tools": [METER, PATCH], "reasoning": {"effort": "none"}}
        continued = client.responses.create(model=name, input=results, previous_response_id=answer.id, **tools)
        items = [{"role": "user", "content": "Look."}, *answer.output, *results]
        spelled_out = client.responses.create(model=name, input=items, **tools)
        assert continued.output_text == spelled_out.output_text == "Done."
        assert continued.usage.input_tokens == spelled_out.usage.input_tokens

        client.responses.delete(answer.id)
        try:
            client.responses.retrieve(answer.id)
            raise AssertionError("a deleted response was found")
        except openai.NotFoundError as error:
            assert error.code == "response_not_found"


def check_responses_in_background(overshot):
    slow = [["word ", {"delay_ms": 20}] * 500]
    with playing(overshot, slow, "--max-context", "4000") as client:
        fields = {"model": model(client), "input": "Hello?", "background": True}
        answer = client.responses.create(**fields)
        assert answer.status in ("queued", "in_progress")
        while client.responses.retrieve(answer.id).status == "queued":
            pass
        assert client.responses.cancel(answer.id).status == "cancelled"
        while "overshot_requests_running 0" not in metrics(client):
            pass

        stream = iter(client.responses.create(stream=True, max_output_tokens=20, **fields))
        begun = [next(stream) for _ in range(8)]
        joined = client.responses.retrieve(begun[0].response.id, stream=True, starting_after=3)
        rest = list(joined)
        assert [event.sequence_number for event in rest] == list(range(4, 4 + len(rest)))
        assert rest[:4] == begun[4:] and rest[4:] == list(stream)
        last = rest[-1].response
        assert (last.status, last.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert last.usage.output_tokens == 20


def check_structured(overshot):
    with serving.serving(overshot) as url:
        client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
        chat = {"model": model(client), "messages": QUESTION}
        asked = {"model": model(client), "input": "Hello?"}
        for effort in ["none", "high"]:
            answer = client.chat.completions.parse(response_format=Picture, reasoning_effort=effort, **chat)
            assert isinstance(answer.choices[0].message.parsed, Picture), answer
            answer = client.responses.parse(text_format=Picture, reasoning={"effort": effort}, **asked)
            assert isinstance(answer.output_parsed, Picture), answer
        with client.responses.stream(text_format=Picture, **asked) as stream:
            assert isinstance(stream.get_final_response().output_parsed, Picture)

        tools = [openai.pydantic_function_tool(Picture, name="draw")]
        answer = client.chat.completions.parse(tools=tools, tool_choice="required", parallel_tool_calls=False, **chat)
        [call] = answer.choices[0].message.tool_calls
        assert isinstance(call.function.parsed_arguments, Picture), answer
        tools = [{"type": "function", **tools[0]["function"]}]
        named = {"type": "function", "name": "draw"}
        [call] = client.responses.parse(tools=tools, tool_choice=named, **asked).output
        Picture.model_validate_json(call.arguments)


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
    serving.hold_session(overshot, "openai-python.md")


def main():
    checks = [
        check_chat,
        check_stream,
        check_tools,
        check_responses,
        check_responses_in_background,
        check_structured,
        check_choices_logprobs_stops,
        check_errors,
        check_session,
    ]
    serving.run(sys.argv[1], f"openai-python {openai.__version__}", checks)


if __name__ == "__main__":
    main()
