"""Journals as data sets: a PySpark data source, and jobs on it. Reads files only; nothing of the broker needs it.

Importing this imports neither Spark nor Arrow: what needs them, the extra ``spark``, imports them when it is called.
"""

from __future__ import annotations

from broker.pipeline.columns import TABLES

__all__ = ["TABLES"]
