"""Refusals of a set."""

from __future__ import annotations


class ChangeRefused(Exception):
    """The voters cannot be changed in this way, or not now."""


class NotStarted(Exception):
    """The node waits for free space on its volume, or for the volume."""


class NotMaster(ChangeRefused):
    """The node is not the master: send the request to the master."""
