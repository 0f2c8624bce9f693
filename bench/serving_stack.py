#!/usr/bin/env python3
"""Measures what the stack around a model costs: HTTP, scheduling, detokenizing, events; no model computes anything.

Starts `overshot serve` on a script whose steps yield one token each, keeps N streams running, and prints

* microseconds of the server's CPU time (user and system, all its threads, as the kernel counts it) for each token,
  once with steps that take no time and once with steps of 25 ms, in interleaved repeats after a warm-up
* with --mixed-minutes M: resident memory over M minutes of mixed traffic (streams, whole answers, several choices,
  tools, log probabilities, long prompts, refusals, clients that leave and clients that read slowly), sampled each second

This script reads the streams on the same machine and shares its cores: tokens a second are what both together reach,
CPU time is the server's alone. Needs Linux and a release binary; it builds nothing. With --json, one object.
"""

import argparse
import contextlib
import json
import os
import random
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
WORDS = [" the", " of", " and", " to", " a", " in", " it", " was", " her", " his", " not", " be", " had", " with", " as", " that"]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}
CALL = ['\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="look">\n', '<｜DSML｜parameter name="at" string="true">', "there",
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=REPOSITORY / "target/release/overshot")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mixed-minutes", type=float, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Server:
    """A server that plays `lines`."""

    def __init__(self, binary, streams, lines):
        self.script = tempfile.NamedTemporaryFile("w", suffix=".jsonl")
        self.script.writelines(json.dumps({"chunks": line}) + "\n" for line in lines)
        self.script.flush()
        command = [binary, "serve", "--port", "0", "--backend", f"scripted:{self.script.name}", "--max-batch", str(streams),
                   "--max-queue", str(4 * streams), "--kv-pool-tokens", str(1024 * streams), "--drain-seconds", "0"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline().strip()
        if not line.startswith("listening on http://"):
            sys.exit(f"no server: {line!r}")
        host, port = line.removeprefix("listening on http://").split(":")
        self.address = (host, int(port))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)

    def get(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request("http://%s:%d%s" % (*self.address, path), data, {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=60).read().decode()

    def metric(self, name):
        return next(int(line.split()[1]) for line in self.get("/metrics").splitlines() if line.startswith(name + " "))

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident_mib(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


class Load:
    """Keeps a number of requests under way; `next_request` gives a body, and after how many bytes (`None`: never) and
    for how many seconds the client stops reading."""

    def __init__(self, server, count, next_request):
        self.server, self.next_request = server, next_request
        self.selector = selectors.DefaultSelector()
        self.buffer = bytearray(1 << 18)
        self.paused = []
        self.answers = 0
        for _ in range(count):
            self.begin()

    def begin(self):
        body, leaves_after, pauses = self.next_request()
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        client = socket.create_connection(self.server.address)
        client.sendall(head.encode() + data)
        client.setblocking(False)
        if pauses:
            self.paused.append((time.monotonic() + pauses, client))
        else:
            self.selector.register(client, selectors.EVENT_READ, [leaves_after])

    def run(self, seconds):
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            for entry in [entry for entry in self.paused if entry[0] <= now]:
                self.paused.remove(entry)
                self.selector.register(entry[1], selectors.EVENT_READ, [None])
            for key, _ in self.selector.select(min(0.1, end - now)):
                try:
                    count = key.fileobj.recv_into(self.buffer)
                except ConnectionError:
                    count = 0
                left = key.data
                if left[0] is not None:
                    left[0] -= count
                if count == 0 or (left[0] is not None and left[0] <= 0):
                    self.selector.unregister(key.fileobj)
                    key.fileobj.close()
                    self.answers += 1
                    self.begin()

    def close(self):
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
        for _, client in self.paused:
            client.close()
        self.selector.close()


def single_tokens(binary):
    """Words that are one token each, so that a step yields one token."""
    with Server(binary, 1, [["x"]]) as server:
        words = [word for word in WORDS if json.loads(server.get("/tokenize", {"prompt": word, "add_special_tokens": False}))["count"] == 1]
    if not words:
        sys.exit("no word is one token")
    return words


def measure_cost(given, words, step_ms):
    """CPU microseconds a token and tokens a second."""
    delay = [{"delay_ms": step_ms}] if step_ms else []
    line = [chunk for index in range(400) for chunk in [*delay, words[index % len(words)]]]
    stream = lambda: ({"messages": QUESTION, "stream": True}, None, 0)
    with Server(given.binary, given.streams, [line]) as server, contextlib.closing(Load(server, given.streams, stream)) as load:
        load.run(3)
        tokens, cpu, started = server.metric("overshot_generated_tokens_total"), server.cpu_seconds(), time.monotonic()
        load.run(given.seconds)
        # Asking for the metrics costs something too; once a measurement.
        tokens = server.metric("overshot_generated_tokens_total") - tokens
        return 1e6 * (server.cpu_seconds() - cpu) / tokens, tokens / (time.monotonic() - started)


def mixed_request(rng):
    body = {"messages": QUESTION, "stream": rng.random() < 0.7}
    leaves_after, pauses = None, 0
    kind = rng.randrange(10)
    if kind == 0:
        body["messages"] = [{"role": "user", "content": "word " * rng.randrange(500, 4000)}]
    elif kind == 1:
        body["n"] = 3
    elif kind == 2:
        body |= {"logprobs": True, "top_logprobs": 5}
    elif kind == 3:
        body |= {"tools": [TOOL], "reasoning_effort": "high"}
    elif kind == 4:
        leaves_after = rng.randrange(1, 20_000)
    elif kind == 5:
        pauses = rng.uniform(0.1, 3)
    elif kind == 6:
        body["temperature"] = -1
    elif kind == 7:
        body |= {"max_tokens": rng.randrange(1, 50), "stop": ["had with"]}
    return body, leaves_after, pauses


def measure_memory(given, words):
    """Resident MiB, second by second, and what was served."""
    rng = random.Random(7)
    text = lambda count: [rng.choice(words) for _ in range(count)]
    slowly = lambda chunks: [part for chunk in chunks for part in [{"delay_ms": 2}, chunk]]
    lines = [text(50), text(400), slowly(text(200)), [*text(30), "</think>", *text(20)], [*text(10), "</think>", *CALL]]
    samples = []
    with Server(given.binary, given.streams, lines) as server:
        with contextlib.closing(Load(server, given.streams, lambda: mixed_request(rng))) as load:
            for _ in range(round(60 * given.mixed_minutes)):
                load.run(1)
                samples.append(server.resident_mib())
            answers = load.answers
        tokens = server.metric("overshot_generated_tokens_total")
        deadline = time.monotonic() + 60
        while server.metric("overshot_requests_running") + server.metric("overshot_requests_waiting") and time.monotonic() < deadline:
            time.sleep(0.1)
        held = sum(int(line.split()[1]) for line in server.get("/metrics").splitlines() if line.startswith("overshot_kv_pages_used"))
        return {"samples_mib": samples, "answers": answers, "tokens": tokens, "pages_held_at_rest": held, "at_rest_mib": server.resident_mib()}


def spread(values):
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values)}


def slope_per_minute(samples):
    """Of a straight line through samples a second apart."""
    if len(samples) < 3:
        return 0.0
    return 60 * statistics.linear_regression(range(len(samples)), samples).slope


def main():
    given = arguments()
    if not given.binary.is_file():
        sys.exit(f"there is no {given.binary}: build it with cargo build --release, or name one with --binary")
    words = single_tokens(given.binary)
    runs = {0: [], 25: []}
    for _ in range(given.repeats):
        for step_ms, found in runs.items():
            found.append(measure_cost(given, words, step_ms))
    report = {"streams": given.streams, "repeats": given.repeats, "seconds": given.seconds, "cost": {}}
    for step_ms, found in runs.items():
        cost, rate = zip(*found) if found else ([], [])
        if found:
            report["cost"][f"steps of {step_ms} ms"] = {"cpu_us_per_token": spread(cost), "tokens_per_second": spread(rate)}
    if given.mixed_minutes:
        memory = measure_memory(given, words)
        samples = memory.pop("samples_mib")
        later = samples[len(samples) // 5:]
        memory |= {"minutes": given.mixed_minutes, "resident_mib_by_tenth": [round(statistics.mean(samples[i * len(samples) // 10:(i + 1) * len(samples) // 10]), 1) for i in range(10)],
                   "greatest_mib": round(max(samples), 1), "slope_mib_per_minute_after_a_fifth": round(slope_per_minute(later), 3)}
        report["memory"] = memory
    if given.json:
        print(json.dumps(report))
        return
    print(f"{given.streams} streams, {given.repeats} repeats of {given.seconds:g} s; median (least to greatest)")
    for name, found in report["cost"].items():
        cost, rate = found["cpu_us_per_token"], found["tokens_per_second"]
        print(f"{name:15} {cost['median']:6.2f} us CPU a token ({cost['least']:.2f} to {cost['greatest']:.2f}), {rate['median']:,.0f} tokens/s")
    for name, value in report.get("memory", {}).items():
        print(f"{name:36} {value}")


if __name__ == "__main__":
    main()
