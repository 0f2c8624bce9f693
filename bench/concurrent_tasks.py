#!/usr/bin/env python3
"""Whether answers stay right when many are made at once.

For each format of index keys it starts `overshot serve` on the small model, asks every prompt of models/dsv4-mini/prompts.jsonl
once alone, then again and again at each number of concurrent requests until enough tokens were generated, shuffled each time.
Prints, by number of requests: tokens, answers that begin as they should (prompts with one right answer), and answers that are
not the text that the same prompt gave alone. Greedy, over the end of the answer, so that every request has the same length.
Builds nothing. The exit code is 1 if an answer differs from the one given alone and --may-differ is not said.
"""

import argparse
import json
import random
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
END = "<｜end▁of▁sentence｜>"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=REPOSITORY / "target/release/overshot")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--index-keys", nargs="+", default=["f32", "bf16", "fp8", "fp4"])
    parser.add_argument("--concurrent", nargs="+", type=int, default=[1, 8, 64, 256])
    parser.add_argument("--tokens", type=int, default=20_000, help="to generate at each number of requests")
    parser.add_argument("--answer-tokens", type=int, default=96)
    parser.add_argument("--longest-prompt", type=int, default=4096, help="leave longer ones out")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--may-differ", action="store_true", help="do not fail where a batch changes an answer")
    parser.add_argument("flags", nargs="*", help="more flags of `overshot serve`, after --")
    return parser.parse_args()


class Server:
    def __init__(self, options, index_keys):
        command = [options.binary, "serve", "--model", REPOSITORY / "models/dsv4-mini", "--port", "0", "--backend", options.backend,
                   "--index-keys", index_keys, "--max-batch", str(max(options.concurrent)), "--drain-seconds", "0", *([] if options.may_differ else ["--batch-invariant"]), *options.flags]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.url = next(word for word in self.process.stdout.readline().split() if word.startswith("http")).rstrip("/")

    def answer(self, prompt_ids, tokens):
        body = {"prompt": prompt_ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as reply:
            reply = json.load(reply)
        return reply["choices"][0]["text"], reply["usage"]["completion_tokens"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def expected(prompt):
    """How the answer begins, where there is one right answer."""
    return prompt["greedy_text"].removesuffix(END) if prompt.get("exact") else None


def main():
    options = arguments()
    prompts = [json.loads(line) for line in (REPOSITORY / "models/dsv4-mini/prompts.jsonl").open()]
    prompts = [prompt for prompt in prompts if len(prompt["prompt_ids"]) <= options.longest_prompt]
    shuffled, differing = random.Random(options.seed), 0
    for index_keys in options.index_keys:
        with Server(options, index_keys) as server:
            ask = lambda at: (at, *server.answer(prompts[at]["prompt_ids"], options.answer_tokens))
            alone = {at: text for at, text, _ in map(ask, range(len(prompts)))}
            for concurrent in options.concurrent:
                rounds = -(-options.tokens // (len(prompts) * options.answer_tokens))
                order = [at for _ in range(rounds) for at in shuffled.sample(range(len(prompts)), len(prompts))]
                started = time.monotonic()
                with ThreadPoolExecutor(concurrent) as pool:
                    answers = list(pool.map(ask, order))
                seconds = time.monotonic() - started
                tokens = sum(count for _, _, count in answers)
                judged = [(text, expected(prompts[at])) for at, text, _ in answers if expected(prompts[at])]
                right = sum(text.startswith(start) for text, start in judged)
                other = sum(text != alone[at] for at, text, _ in answers)
                differing += other
                print(f"--index-keys {index_keys}, {concurrent} at once: {tokens} tokens in {seconds:.1f} s, {right} of {len(judged)} right, "
                      f"{other} of {len(answers)} other than alone", flush=True)
    sys.exit(differing > 0 and not options.may_differ)


if __name__ == "__main__":
    main()
