"""Paths in the source tree."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
#: Directories that `tandemmq/` links to, and that are below it in a wheel.
DIRECTORIES = (
    "bench", "broker", "cli", "client", "config", "index", "journal", "locker", "pipeline", "simulator", "store"
)  # fmt: skip
#: OpenWire frames of every type of message, recorded from ActiveMQ's client.
FRAMES_FILE = TESTS / "support" / "records" / "frames.json"
