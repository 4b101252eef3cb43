"""The part of Spark's DataFrame API that the jobs use, implemented with DuckDB: one process, no Java.

    columns become SQL text, frames become views, and nothing runs before rows are read or written

Missing values, the order of nulls, and the types of results are as in Spark: tests run each job with both engines, and
compare the results. Requires duckdb, pyarrow and numpy.
"""
