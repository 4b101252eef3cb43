"""Spark's DataFrames, as far as the jobs use them, in DuckDB's SQL: one process, no Java.

    columns become SQL text, frames become views, and nothing runs before rows are read or written

Missing values, the order of nulls, and the types of results are as in Spark: tests run each job with both engines and
compare. Needs duckdb, pyarrow and numpy.
"""
