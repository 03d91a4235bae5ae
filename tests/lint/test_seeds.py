"""test_seeds.py CTEST BUILD: no test pins RapidCheck's seed, which is the caller's (RC_PARAMS) or a new one."""

import json
import subprocess
import sys


def main(ctest, build):
    shown = subprocess.run(
        [ctest, "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True, text=True
    )
    pinned, free = [], 0
    for test in json.loads(shown.stdout)["tests"]:
        values = {prop["name"]: prop["value"] for prop in test.get("properties", [])}
        changes = [
            change
            for name in ("ENVIRONMENT", "ENVIRONMENT_MODIFICATION")
            for change in values.get(name, [])
            if change.startswith("RC_PARAMS=")
        ]
        if all(change.startswith("RC_PARAMS=string_prepend:") and "seed=" not in change for change in changes):
            free += bool(changes)
        else:
            pinned.append(test["name"])
    print(f"{free} tests take the caller's RC_PARAMS; {len(pinned)} do not: {', '.join(pinned[:5])}")
    return 1 if pinned or not free else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
