"""What is made at the start of a broker's process."""

from __future__ import annotations

import subprocess
import sys

_FIRST_SELECTOR = """
import sys
from tandemmq.broker import run
from tandemmq.broker.core.selector import compile_selector, grammar
from tandemmq.config.load import load

def broker(*parts):
    made = grammar._parser.cache_info().misses
    for is_classic in (False, True):
        compile_selector("colour = 'red'", is_classic=is_classic)
    sys.exit(grammar._parser.cache_info().misses - made)

run.Broker = broker
run.run_broker(load(environ={}))
"""


def test_the_first_selector_finds_the_parsers_made() -> None:
    """In a process of its own: here others have compiled some."""
    assert subprocess.run([sys.executable, "-c", _FIRST_SELECTOR], timeout=60, check=False).returncode == 0
