"""Manifests that a broker writes beside archived files. To plan a read, a file with a manifest is not opened.

A manifest is trusted if it states the name and the length of its file. See docs/formats/archive-manifest.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tandemmq.pipeline.places import Entry, Place
from tandemmq.store.maintenance.manifest import MANIFEST_BYTES_MAX, SUFFIX, Manifest, decode_manifest

log = logging.getLogger(__name__)


class Mistrusted(NamedTuple):
    """A manifest that does not match its file, and the reason."""

    path: str
    why: str


def described(entries: Iterable[Entry]) -> frozenset[str]:
    """Return the names in a directory that have a manifest beside them, trusted or not."""
    names = {entry.name for entry in entries if not entry.is_directory}
    return frozenset(name for name in names if name + SUFFIX in names)


def manifest_of(place: Place, path: str, size: int) -> Manifest | None:
    """Return the manifest of the file at ``path``, which has ``size`` bytes; None: there is no manifest, or it is not
    trusted.

    Raises OSError of the file system.
    """
    found = _read(place, path + SUFFIX)
    if isinstance(found, Manifest):
        why = _wrong(found, path, size)
        if why is None:
            return found
        log.warning("%s is not trusted: %s", path + SUFFIX, why)
    elif found is not None:
        log.warning("%s is not trusted: %s", *found)
    return None


def mistrusted(place: Place, directory: str, entries: Iterable[Entry]) -> Iterator[Mistrusted]:
    """Yield the manifests in a directory that are not trusted, with the reasons."""
    sizes = {entry.name: entry.size for entry in entries if not entry.is_directory}
    for name in sorted(sizes):
        if not name.endswith(SUFFIX) or name.startswith("."):
            continue
        path = f"{directory.rstrip('/')}/{name}"
        file = name.removesuffix(SUFFIX)
        if file not in sizes:
            yield Mistrusted(path, "its file does not exist")
            continue
        found = _read(place, path)
        if isinstance(found, Mistrusted):
            yield found
        elif found is not None and (why := _wrong(found, path.removesuffix(SUFFIX), sizes[file])) is not None:
            yield Mistrusted(path, why)


def _read(place: Place, path: str) -> Manifest | Mistrusted | None:
    try:
        source = place.open(path)
    except FileNotFoundError:
        return None
    try:
        if source.size() > MANIFEST_BYTES_MAX:
            return Mistrusted(path, f"it has {source.size()} bytes")
        manifest = decode_manifest(source.read(0, MANIFEST_BYTES_MAX))
    finally:
        source.release()
    return Mistrusted(path, "it is not a manifest of a known format") if manifest is None else manifest


def _wrong(manifest: Manifest, path: str, size: int) -> str | None:
    name = path.rpartition("/")[2]
    if manifest.name != name:
        return f"it is of {manifest.name}"
    if manifest.bytes != size:
        return f"it states {manifest.bytes} bytes, but {name} has {size}"
    return None
