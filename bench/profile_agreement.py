#!/usr/bin/env python3
"""Whether `overshot lab profile` sees the same over HTTP as in its own process, on the CPU backend.

Profiles the built-in model twice, first in process, then through `overshot serve`, at the same batches, and compares the
slopes of the whole step. Exits with 1 unless both are known within 10 % (half the 95 % interval) and the intervals overlap.
Needs a quiet machine and a release build:

    cargo build --release && python3 bench/profile_agreement.py target/release/overshot
"""

import json
import re
import subprocess
import sys

HALF_WIDTH_MAX = 0.10
SWEEP = ["--concurrency", "2,4,8,16,32", "--prompt-tokens", "64", "--max-tokens", "96", "--repeats", "9"]


def slope(report):
    linear = report["growth"]["linear"]
    interval = linear["slope_interval_ms"]
    return linear["slope_ms"], interval["low"], interval["high"]


def profile(program, *flags):
    command = [program, "lab", "profile", "--backend", "cpu", *SWEEP, *flags, "--json"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "target/release/overshot"
    in_process = slope(profile(program))
    server = subprocess.Popen([program, "serve", "--port", "0", "--backend", "cpu"], stdout=subprocess.PIPE, text=True)
    try:
        for line in server.stdout:
            if address := re.search(r"http://\S+", line):
                break
        else:
            sys.exit("the server ended before it told its address")
        over_http = slope(profile(program, "--url", address.group(0).rstrip("/.,")))
    finally:
        server.terminate()
        server.wait()
    agree = in_process[1] <= over_http[2] and over_http[1] <= in_process[2]
    for name, (value, low, high) in [("in process", in_process), ("over HTTP", over_http)]:
        half_width = (high - low) / 2 / value
        agree = agree and half_width <= HALF_WIDTH_MAX
        print(f"{name}: {value:.3f} ms a request ({low:.3f} to {high:.3f}), half-width {half_width:.1%}")
    print("they agree" if agree else "they do not agree, or are not known well enough")
    sys.exit(0 if agree else 1)


if __name__ == "__main__":
    main()
