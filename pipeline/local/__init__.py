"""Spark's DataFrames, as far as the jobs use them, in DuckDB's SQL: one process, no Java.

    columns become text of SQL, frames become views, and nothing runs before rows are asked for or written

What a function does where values are missing, in which order nulls come, and of which type a result is, is what Spark
does: tests run each job with both engines and compare. Needs duckdb, pyarrow and numpy.
"""
