#!/usr/bin/env python3
"""Times the transformers package (5.24) on models/dsv4-mini, on a CPU.

Its FP8 and FP4 matrices need a GPU, so they are dequantised while loading: what is timed is dense arithmetic in --dtype,
with eager attention, not the published formats. Prints one JSON object:

* prefill: tokens a second over one prompt of 512 tokens, batch 1
* decode: tokens a second, all rows together, at each batch size, greedy, after a prompt of --context tokens

Each number is the median of --repeats runs, with the least and greatest beside it. The first run of each kind does not
count. Needs torch, transformers and accelerate; nothing is downloaded. Each measurement is told on the error stream as it
ends, because a slow machine takes minutes.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import AutoModelForCausalLM, FineGrainedFP8Config

MODEL = Path(__file__).resolve().parents[2] / "models/dsv4-mini"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefill", type=int, default=512, help="tokens of the timed prompt")
    parser.add_argument("--context", type=int, default=64, help="tokens before the decoded ones")
    parser.add_argument("--decode", type=int, default=32, help="timed tokens a row")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def load(path, dtype):
    model = AutoModelForCausalLM.from_pretrained(
        path,
        dtype=getattr(torch, dtype),
        quantization_config=FineGrainedFP8Config(dequantize=True),
        attn_implementation="eager",
        local_files_only=True,
    )
    return model.eval()


def random_ids(model, rows, tokens):
    """Ordinary ids, the same in every run: speed does not depend on what they say."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(100, model.config.vocab_size, (rows, tokens), generator=generator)


def prefill_seconds(model, tokens):
    ids = random_ids(model, 1, tokens)
    started = time.perf_counter()
    model(ids, use_cache=True, logits_to_keep=1)
    return time.perf_counter() - started


def decode_seconds(model, rows, context, tokens):
    step = model(random_ids(model, rows, context), use_cache=True, logits_to_keep=1)
    started = time.perf_counter()
    for _ in range(tokens):
        newest = step.logits[:, -1:].argmax(-1)
        step = model(newest, cache=step.past_key_values, use_cache=True)
    return time.perf_counter() - started


def tokens_per_second(what, tokens, repeats, measure):
    measure()
    speeds = [tokens / measure() for _ in range(repeats)]
    print(f"{what}: {', '.join(f'{speed:.2f}' for speed in speeds)} tokens/s", file=sys.stderr, flush=True)
    return {"median": statistics.median(speeds), "least": min(speeds), "greatest": max(speeds)}


@torch.inference_mode()
def main():
    given = arguments()
    if min(given.prefill, given.context, given.decode, given.repeats, given.threads, *given.batch) < 1:
        sys.exit("every number must be at least 1")
    torch.set_num_threads(given.threads)
    started = time.perf_counter()
    model = load(given.model, given.dtype)
    load_seconds = time.perf_counter() - started
    prefill = tokens_per_second("prefill", given.prefill, given.repeats, lambda: prefill_seconds(model, given.prefill))
    decode = {
        str(rows): tokens_per_second(
            f"decode, batch {rows}",
            rows * given.decode,
            given.repeats,
            lambda: decode_seconds(model, rows, given.context, given.decode),
        )
        for rows in given.batch
    }
    report = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "dtype": given.dtype,
        "threads": given.threads,
        "load_seconds": load_seconds,
        "prefill_tokens": given.prefill,
        "prefill_tokens_per_second": prefill,
        "decode_context_tokens": given.context,
        "decode_tokens_per_row": given.decode,
        "decode_tokens_per_second_by_batch": decode,
        "repeats": given.repeats,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
