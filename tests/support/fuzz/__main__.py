"""Run a fuzzer for any time: ``python -m tests.support.fuzz NAME [--seed N] [--cases N] [--first N] [--steps N]``.

The default seed is random. ``--first`` belongs to ``valid_packets``, ``--steps`` to ``valid_frames``. The fuzzer
``ports`` has ``--seconds`` instead of ``--cases``, ``--first`` (number of a part of 60 s), and ``--ports`` (names
separated by commas).
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
from collections.abc import Sequence

#: Default number of cases.
CASES = {"commands": 1_000, "mqtt": 100_000, "openwire": 100_000, "valid_frames": 100, "valid_packets": 1_000}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*CASES, "ports"])
    for option in ("seed", "cases", "first", "steps", "seconds"):
        parser.add_argument(f"--{option}", type=int, default=argparse.SUPPRESS)
    parser.add_argument("--ports", type=lambda text: text.split(","), default=argparse.SUPPRESS)
    options = {"seed": random.SystemRandom().randrange(1 << 32), **vars(parser.parse_args(arguments))}
    name = options.pop("name")
    if name in CASES:
        options.setdefault("cases", CASES[name])
    print(name, options, flush=True)
    for what, times in importlib.import_module(f"tests.support.fuzz.{name}").run(**options).items():
        print(f"{times:8} {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
