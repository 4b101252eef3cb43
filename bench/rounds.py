"""Brokers that take turns at the same cases, and what we are to each peer by that."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tandemmq.bench.compare import COMPILED, OURS
from tandemmq.bench.connection import BenchError
from tandemmq.bench.peers.server import PeerMissing, Server

Run = Mapping[str, Any]
# Ours, plain or compiled -> peer -> case -> figure -> ours to theirs.
Ratios = dict[str, dict[str, dict[str, dict[str, float | None]]]]

_Server = TypeVar("_Server", bound=Server)


def take_turns(
    cases: Sequence[str],
    brokers: Mapping[str, Callable[[], _Server]],
    names: Sequence[str],
    rounds: int,
    compiled: Callable[[Path], _Server],
    tree: Path | None,
    measure: Callable[[_Server, str], Run],
    told: Callable[[Run], None],
) -> list[Run]:
    """All rounds of all cases: the brokers of ``names``, and ``compiled`` of its ``tree`` if there is one; every other
    round goes backwards. What could not be measured has a problem, and no figures."""
    brokers = dict(brokers)
    if tree is not None:
        brokers[COMPILED] = lambda: compiled(tree)
        names = [*names, COMPILED]
    runs: list[Run] = []
    for case in cases:
        for number in range(1, rounds + 1):
            for name in names if number % 2 else reversed(names):
                run: dict[str, Any] = {"case": case, "broker": name, "round": number, "problem": None}
                try:
                    with brokers[name]() as server:
                        run |= measure(server, case)
                except (BenchError, PeerMissing, OSError) as problem:
                    run["problem"] = str(problem)
                runs.append(run)
                told(run)
    return runs


def ratios(runs: Sequence[Run], figures: Mapping[str, bool]) -> Ratios:
    """Of the medians. ``figures``: whether more of it is better; what is better when it is less is turned round, so
    that above 1 is for us. None: one of both has no such figure."""
    brokers = list(dict.fromkeys(run["broker"] for run in runs))
    cases = list(dict.fromkeys(run["case"] for run in runs))

    def median(broker: str, case: str, figure: str) -> float | None:
        values = [run[figure] for run in runs if (run["broker"], run["case"]) == (broker, case) and run.get(figure)]
        return statistics.median(values) if values else None

    def ratio(ours: str, peer: str, case: str, figure: str) -> float | None:
        mine, theirs = median(ours, case, figure), median(peer, case, figure)
        if not mine or not theirs:
            return None
        return mine / theirs if figures[figure] else theirs / mine

    return {
        ours: {
            peer: {case: {figure: ratio(ours, peer, case, figure) for figure in figures} for case in cases}
            for peer in brokers
            if peer not in (OURS, COMPILED)
        }
        for ours in (OURS, COMPILED)
        if ours in brokers
    }
