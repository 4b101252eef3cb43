"""Of settings that were read again, it is named what a broker that runs cannot take over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.config.changes import changed_at_once, changed_for_the_next_start
from tandemmq.config.load import load

BEFORE = """
[broker]
name = "a"
queue_prefetch = 5
[[destinations]]
queue = "A.>"
queue_prefetch = 5
[[destinations]]
topic = "B.>"
"""


@pytest.mark.parametrize(
    ("after", "changes"),
    [
        (BEFORE, []),
        (
            BEFORE.replace("5", "6", 1) + '[logging]\nlevel = "debug"\nloggers = {"broker.net" = "error"}\n',
            [
                "broker.queue_prefetch is 6 now, and was 5",
                "logging.level is 'debug' now, and was 'info'",
                "logging.loggers.broker.net is 'error' now, and was None",
            ],
        ),
        (BEFORE.replace("topic", "memory_limit = 70000\ntopic"), []),
        (
            BEFORE.replace('A.>"\nqueue_prefetch = 5', 'A.>"\nqueue_prefetch = 7'),
            ["destinations[queue A.>].queue_prefetch is 7 now, and was 5"],
        ),
    ],
)
def test_what_holds_at_once_is_named_with_its_values(tmp_path: Path, after: str, changes: list[str]) -> None:
    read = []
    for name, text in (("before", BEFORE), ("after", after)):
        (tmp_path / name).write_text(text)
        read.append(load(tmp_path / name, environ={}))
    assert changed_at_once(*read) == changes


@pytest.mark.parametrize(
    ("after", "keys"),
    [
        (BEFORE.replace("5", "6") + "durable_topic_prefetch = 1\nqueue_browser_prefetch = 2\n", []),
        (BEFORE + "memory_limit = 70000\n", ["destinations[topic B.>].memory_limit"]),
        (BEFORE + '[[destinations]]\nqueue = "C"\n', ["destinations[queue C]"]),
        (BEFORE.replace("B.>", "D.>"), ["destinations[topic B.>]", "destinations[topic D.>]"]),
        (BEFORE.replace('"a"', '"b"\nmemory_limit = 20000000'), ["broker.memory_limit", "broker.name"]),
        (BEFORE + '[store]\ncheckpoint_interval = "7s"\n', ["store.checkpoint_interval"]),
        (BEFORE + '[[connectors]]\nuri = "stomp://127.0.0.1:1"\n', ["connectors"]),
    ],
)
def test_what_holds_from_the_next_start_is_named(tmp_path: Path, after: str, keys: list[str]) -> None:
    read = []
    for name, text in (("before", BEFORE), ("after", after)):
        (tmp_path / name).write_text(text)
        read.append(load(tmp_path / name, environ={}))
    assert sorted(changed_for_the_next_start(*read)) == keys
