"""The commands of .ci/run for tests.

    python -m tests.support.ci run plain                               a leg: plain, services, docker or compiled
    python -m tests.support.ci run plain -- tests/unit/journal         a part of it
    python -m tests.support.ci conclude                                second runs of what failed, and a summary
    python -m tests.support.ci repeat --leg compiled --seed 7 TEST     one test, as CI ran it
    python -m tests.support.ci images                                  base images and wheels for the leg docker
    python -m tests.support.ci sources                                 a source of apt for this system's source packages

TANDEMMQ_CI_LOGS names the directory for the files that `run` and `conclude` write.
"""

from __future__ import annotations

import argparse
import signal
import sys

from tests.support.acceptance.docker_image import prepare_images, release
from tests.support.ci.legs import LEGS
from tests.support.ci.reruns import conclude, run_again, run_first


def main() -> int:
    # The processes that `prepared` started must end with this one.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.ci", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("images")
    commands.add_parser("sources")
    commands.add_parser("conclude")
    run = commands.add_parser("run")
    run.add_argument("leg", choices=LEGS)
    run.add_argument("arguments", nargs="*", help="of pytest, instead of all tests of the leg")
    repeat = commands.add_parser("repeat")
    repeat.add_argument("--leg", choices=LEGS, default="plain")
    repeat.add_argument("--seed", type=int, required=True)
    repeat.add_argument("test")
    asked = parser.parse_args()
    if asked.command == "run":
        return run_first(LEGS[asked.leg], asked.arguments)
    if asked.command == "repeat":
        return 0 if run_again(LEGS[asked.leg], asked.test, asked.seed) else 1
    if asked.command == "images":
        prepare_images()
        return 0
    if asked.command == "sources":
        codename, mirror, components = release()
        print("deb-src", mirror, codename, *sorted(components & {"main", "universe"}))
        return 0
    return conclude()


if __name__ == "__main__":
    sys.exit(main())
