"""Holds the server against its own description: what /openapi.json allows is sent, as well as what it does not allow,
and every response must be of a documented status, type and form. None may be a 500.

    python schema_fuzz.py path/to/overshot

Needs schemathesis. It is bounded by the number of requests, not by a clock, and has a fixed seed. Two checks of
schemathesis are left out, as the server is lenient by intent: it ignores fields that it does not know and takes null
for absent, and some rules between fields stand in no schema.
"""

import pathlib
import subprocess
import sys
import urllib.request

from serving import serving

REQUESTS_A_ROUTE = 40
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def main():
    schemathesis = pathlib.Path(sys.executable).with_name("schemathesis")
    # Answers are short, however many tokens are asked for.
    with serving(sys.argv[1], "--max-context", "256") as url:
        command = [schemathesis, "run", f"{url}/openapi.json", "--checks", CHECKS, "--seed", "1", "--workers", "2"]
        command += ["--phases", "examples,coverage,fuzzing", "--max-examples", str(REQUESTS_A_ROUTE)]
        command += ["--request-timeout", "20", "--suppress-health-check", "all", "--no-color"]
        outcome = subprocess.run(command, timeout=600)
        health = urllib.request.urlopen(f"{url}/health", timeout=10).status
    assert health == 200, "the server is not well afterwards"
    sys.exit(outcome.returncode)


if __name__ == "__main__":
    main()
