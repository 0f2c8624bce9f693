#!/usr/bin/env python3
"""Times llama.cpp, through an installed llama-cpp-python, on models/dsv4-mini converted to GGUF, on a CPU.

The conversion (llama.cpp's own convert_hf_to_gguf.py) keeps the FP4 experts as MXFP4 and stores the FP8 matrices as Q8_0. It
knows tokenizers by a hash of what they do, and not this vocabulary: its kind is `deepseek-v3`. Prompts are given as token ids.
Prints one JSON object:

* prompts: of the model's reference prompts up to --check-context tokens, how many give the recorded greedy continuation
* prefill: tokens a second over one prompt of --prefill tokens, batch 1
* decode: tokens a second, all rows together, at each batch size, greedy, going on from a prompt of --context tokens

Each number is the median of --repeats runs, with the least and greatest beside it. The first run of each kind does not count.
"""

import argparse
import ctypes
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path

import llama_cpp
import numpy

MODEL = Path(__file__).resolve().parents[2] / "models/dsv4-mini"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path, help="the converted model")
    parser.add_argument("--model", type=Path, default=MODEL, help="folder with the reference prompts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefill", type=int, default=512, help="tokens of the timed prompt")
    parser.add_argument("--context", type=int, default=512, help="tokens before the decoded ones")
    parser.add_argument("--decode", type=int, default=16, help="timed tokens a row and repeat")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--check-context", type=int, default=4000, help="longest checked reference prompt; 0 for none")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


class Sequences:
    """A context for `rows` sequences; every call of `step` extends all of them alike."""

    def __init__(self, model, rows, context, threads):
        options = llama_cpp.llama_context_default_params()
        options.n_seq_max = rows
        options.n_ctx = rows * context
        options.n_batch = max(512, rows)
        options.n_ubatch = options.n_batch
        options.n_threads = threads
        options.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(model, options)
        if not self.context:
            sys.exit("llama.cpp made no context for this model")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.rows = rows
        self.batch_tokens = options.n_batch
        self.batch = llama_cpp.llama_batch_init(options.n_batch, 0, 1)
        self.position = 0

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.position = 0

    def step(self, tokens_by_row):
        """Appends tokens to every row; gives each row's greedy next token."""
        length = len(tokens_by_row[0])
        newest = [0] * self.rows
        entries = [
            (row, self.position + at, tokens[at], at == length - 1)
            for row, tokens in enumerate(tokens_by_row)
            for at in range(length)
        ]
        for start in range(0, len(entries), self.batch_tokens):
            part = entries[start : start + self.batch_tokens]
            self.batch.n_tokens = len(part)
            for index, (row, position, token, wanted) in enumerate(part):
                self.batch.token[index] = token
                self.batch.pos[index] = position
                self.batch.n_seq_id[index] = 1
                self.batch.seq_id[index][0] = row
                self.batch.logits[index] = wanted
            status = llama_cpp.llama_decode(self.context, self.batch)
            if status != 0:
                sys.exit(f"llama_decode returned {status}")
            for index, (row, _, _, wanted) in enumerate(part):
                if wanted:
                    newest[row] = self.greedy(index)
        self.position += length
        return newest

    def greedy(self, index):
        logits = llama_cpp.llama_get_logits_ith(self.context, index)
        return int(numpy.ctypeslib.as_array(logits, shape=(self.vocabulary,)).argmax())

    def close(self):
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.context)


def load_backends():
    """Prebuilt libraries, which LLAMA_CPP_LIB_PATH names, bring the code for each kind of CPU as separate files."""
    folder = os.environ.get("LLAMA_CPP_LIB_PATH")
    if folder:
        ctypes.CDLL(str(Path(folder) / "libggml.so")).ggml_backend_load_all_from_path(folder.encode())


def reference_prompts(folder, longest):
    lines = (folder / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [prompt for prompt in map(json.loads, lines) if len(prompt["prompt_ids"]) <= longest]


def check(model, prompts, context, threads):
    """How many reference prompts give the recorded continuation, and where the others part from it."""
    sequences = Sequences(model, 1, context, threads)
    partings = {}
    for prompt in prompts:
        sequences.clear()
        newest = sequences.step([prompt["prompt_ids"]])
        for at, expected in enumerate(prompt["greedy_ids"]):
            if newest[0] != expected:
                partings[prompt["id"]] = at
                break
            newest = sequences.step([newest])
    sequences.close()
    return {"checked": len(prompts), "as_recorded": len(prompts) - len(partings), "first_other_token": partings}


def random_ids(rows, tokens):
    """Ordinary ids, the same in every run: speed does not depend on what they say."""
    generator = random.Random(1)
    return [[generator.randrange(100, 4000) for _ in range(tokens)] for _ in range(rows)]


def prefill_seconds(sequences, tokens):
    sequences.clear()
    ids = random_ids(1, tokens)
    started = time.perf_counter()
    sequences.step(ids)
    return time.perf_counter() - started


def decode_seconds(sequences, newest, tokens):
    """Decodes on from `newest`, which it replaces by the last tokens."""
    started = time.perf_counter()
    for _ in range(tokens):
        newest[:] = sequences.step([[token] for token in newest])
    return time.perf_counter() - started


def tokens_per_second(what, tokens, repeats, measure):
    measure()
    speeds = [tokens / measure() for _ in range(repeats)]
    print(f"{what}: {', '.join(f'{speed:.2f}' for speed in speeds)} tokens/s", file=sys.stderr, flush=True)
    return {"median": statistics.median(speeds), "least": min(speeds), "greatest": max(speeds)}


def prefill_speed(model, given):
    sequences = Sequences(model, 1, given.prefill, given.threads)
    measure = lambda: prefill_seconds(sequences, given.prefill)
    speed = tokens_per_second("prefill", given.prefill, given.repeats, measure)
    sequences.close()
    return speed


def decode_speed(model, rows, given):
    sequences = Sequences(model, rows, given.context + (given.repeats + 1) * given.decode, given.threads)
    newest = sequences.step(random_ids(rows, given.context))
    measure = lambda: decode_seconds(sequences, newest, given.decode)
    speed = tokens_per_second(f"decode, batch {rows}", rows * given.decode, given.repeats, measure)
    sequences.close()
    return speed


def main():
    given = arguments()
    if min(given.prefill, given.context, given.decode, given.repeats, given.threads, *given.batch) < 1:
        sys.exit("every number must be at least 1")
    quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    load_backends()
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        str(given.gguf).encode(), llama_cpp.llama_model_default_params()
    )
    if not model:
        sys.exit(f"llama.cpp could not load {given.gguf}")
    report = {
        "llama_cpp_python": llama_cpp.__version__,
        "system": llama_cpp.llama_print_system_info().decode(),
        "threads": given.threads,
    }
    prompts = reference_prompts(given.model, given.check_context)
    if prompts:
        report["prompts"] = check(model, prompts, given.check_context + 512, given.threads)
    report |= {
        "prefill_tokens": given.prefill,
        "prefill_tokens_per_second": prefill_speed(model, given),
        "decode_context_tokens": given.context,
        "decode_tokens_per_row": given.decode,
        "decode_tokens_per_second_by_batch": {str(rows): decode_speed(model, rows, given) for rows in given.batch},
        "repeats": given.repeats,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
