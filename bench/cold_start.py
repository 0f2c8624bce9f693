#!/usr/bin/env python3
"""Measures a cold start: a new process from nothing to the end of a first answer.

Runs `overshot run "Hello" --max-tokens 1` N times, after one run that does not count (it brings the binary into the
page cache), and prints median, least and greatest of

* wall time of the whole process: loading, starting the backend, prompt, one token, exit
* peak resident memory of that process, as the kernel counts it (mapped weights included once they are touched); the
  few MiB of this script, from which the process is started, are the least it can be

Needs Linux and a release binary; it builds nothing. With --json, one object for scripts.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=REPOSITORY / "target/release/overshot")
    parser.add_argument("--model", type=Path, help="a checkpoint folder [default: the built-in model]")
    parser.add_argument("--threads", type=int, help="worker threads [default: the binary's own choice]")
    parser.add_argument("--prompt", default="Hello")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def run_once(command):
    """Seconds and peak resident KiB of one process."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{command} ended with {process.returncode}")
    return seconds, usage.ru_maxrss


def spread(values):
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values)}


def main():
    given = arguments()
    if given.runs < 1:
        sys.exit("--runs must be at least 1")
    if not given.binary.is_file():
        sys.exit(f"there is no {given.binary}: build it with cargo build --release, or name one with --binary")
    command = [str(given.binary), "run", given.prompt, "--max-tokens", "1", "--temperature", "0", "--backend", "cpu"]
    command += ["--model", str(given.model)] if given.model else []
    command += ["--threads", str(given.threads)] if given.threads else []
    run_once(command)
    seconds, peaks = zip(*(run_once(command) for _ in range(given.runs)))
    report = {
        "runs": given.runs,
        "wall_ms": spread([1e3 * value for value in seconds]),
        "peak_resident_mib": spread([value / 1024 for value in peaks]),
    }
    if given.json:
        print(json.dumps(report))
        return
    for name, unit in [("wall_ms", "ms"), ("peak_resident_mib", "MiB")]:
        found = report[name]
        print(f"{name:18} {found['median']:8.1f} {unit}  ({found['least']:.1f} to {found['greatest']:.1f}, {given.runs} runs)")


if __name__ == "__main__":
    main()
