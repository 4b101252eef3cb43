"""The client for programs that talk to a pair of brokers: re-exports :mod:`broker.client`."""

from broker.client import *  # noqa: F403
