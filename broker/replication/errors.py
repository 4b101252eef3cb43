"""What a set refuses to whoever asks something of it."""

from __future__ import annotations


class ChangeRefused(Exception):
    """The voters cannot be changed so, or not now."""


class NotStarted(Exception):
    """This node waits for room on its volume, or for the volume."""


class NotMaster(ChangeRefused):
    """This node is not the one to ask."""
