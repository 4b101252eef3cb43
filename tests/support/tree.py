"""Where the source tree and what lies in it is."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
#: Its directories that `tandemmq/` has links to, and that a wheel has below it.
DIRECTORIES = (
    "bench", "broker", "cli", "client", "config", "index", "journal", "locker", "pipeline", "simulator", "store"
)  # fmt: skip
#: OpenWire frames of every kind of message, as the real client sent them.
FRAMES_FILE = TESTS / "support" / "records" / "frames.json"
