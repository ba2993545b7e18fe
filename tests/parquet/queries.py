#!/usr/bin/env python3
"""Runs the shipped queries on tables: queries.py ENGINE TABLES. Gives, as JSON, how long each took, and for each its number of rows and a sum
over them, which two engines must have in common."""

import json
import sys
import time

import engines


def digest(rows):
    """Of all cells; floating-point numbers to eight digits, as engines add in another order."""
    cells = (f"{cell:.8g}" if isinstance(cell, float) else str(cell) for row in rows for cell in row.values())
    return sum(hash_of(cell) for cell in cells) % 2**53


def hash_of(text):
    value = 0
    for byte in text.encode():
        value = (value * 1099511628211 + byte) % 2**61
    return value


def main():
    name, tables = sys.argv[1:]
    engine = engines.ENGINES[name](tables)
    seconds, found = {}, {}
    for query in engines.QUERIES:
        begun = time.monotonic()
        rows = engine.rows(engines.query(query))
        seconds[query] = round(time.monotonic() - begun, 3)
        found[query] = [len(rows), digest(rows)]
    print(json.dumps({"seconds": seconds, "rows": found}))


if __name__ == "__main__":
    main()
