"""Independent readers of Parquet: each gives the rows of a query as dictionaries."""

import os
import pathlib

SQL = pathlib.Path(__file__).parent.parent.parent / "dist" / "sql"
QUERIES = ["links", "delays", "late_ranks", "first_difference", "iterations", "waited_for", "pairs"]
# Views of `views.sql` that are compared.
VIEWS = ["launch", "iteration"]


def query(name):
    return (SQL / f"{name}.sql").read_text()


def statements(name):
    for statement in query(name).split(";\n"):
        if any(line.strip() and not line.startswith("--") for line in statement.splitlines()):
            yield statement


class DuckDb:
    def __init__(self, tables):
        import duckdb

        # The views are of the folder in which they are used.
        os.chdir(tables)
        self.connection = duckdb.connect()
        for statement in [*statements("views.duckdb"), *statements("views")]:
            self.connection.execute(statement)

    def rows(self, sql):
        result = self.connection.execute(sql)
        names = [column[0] for column in result.description]
        return [dict(zip(names, row)) for row in result.fetchall()]


class Spark:
    def __init__(self, tables):
        from pyspark.sql import SparkSession

        settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4", "spark.driver.memory": "3g"}
        builder = SparkSession.builder.master("local[2]")
        for key, value in settings.items():
            builder = builder.config(key, value)
        self.session = builder.getOrCreate()
        self.session.sparkContext.setLogLevel("ERROR")
        self.session.sql(f"SET tables={tables}")
        for statement in [*statements("views.spark"), *statements("views")]:
            self.session.sql(statement)

    def rows(self, sql):
        return [row.asDict() for row in self.session.sql(sql.strip().rstrip(";")).collect()]


ENGINES = {"duckdb": DuckDb, "spark": Spark}
