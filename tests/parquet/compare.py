#!/usr/bin/env python3
"""Compares the tables of `ncclflow export -f parquet` with the JSON lines of the same recordings.

compare.py TABLES LINES… [--engine duckdb] [--engine spark] [--planned-messages] [--expect-difference SEQ] [--expect-waited-for RANK]

LINES are folders with `session.json`. Each engine reads the tables with the shipped views, row by row and with the shipped
queries; what they must give is computed from the lines. Says what differs, and exits with 1.
"""

import argparse
import json
import math
import sys
from collections import Counter

import engines
import expected
from lines import Session

# Columns of `comm` that are counted here; the others are as `session.json` has them.
COUNTED = {"op": "ops", "message": "messages", "call": "calls"}


def fail(message):
    sys.exit(f"differs: {message}")


def value(of):
    """As both sides can be compared: lists and objects are JSON in a table."""
    return json.dumps(of) if isinstance(of, (list, dict)) else of


def canonical(row, columns):
    cells = []
    for column in columns:
        cell = value(row.get(column))
        if isinstance(cell, str) and cell[:1] in "[{":
            cell = json.dumps(json.loads(cell), sort_keys=True)
        cells.append(cell)
    return tuple(cells)


def compare_rows(table, rows, lines):
    """Each line is a row with the same values, and the other way round."""
    columns = sorted({key for row in rows[:1] for key in row} | {key for line in lines for key in line})
    unknown = {key for line in lines for key in line} - {key for row in rows[:1] for key in row}
    if rows and unknown:
        fail(f"{table} lacks the columns {sorted(unknown)}")
    have, want = (Counter(canonical(row, columns) for row in side) for side in (rows, lines))
    if have != want:
        show = lambda some: [dict(zip(columns, row)) for row in list(some)[:2]]
        fail(f"{table}: {len(rows)} rows, {len(lines)} lines; rows only: {show(have - want)}; lines only: {show(want - have)}")


def compare_links(rows, messages):
    want = expected.link_seconds(messages)
    keys = ["job", "host", "communicator", "rank", "peer", "channel", "op", "transport", "nic", "second", "second_of"]
    have = {}
    for row in rows:
        sums = have.setdefault(tuple(row[key] for key in keys), Counter())
        longest = max(sums["busy_max_ns"], row["busy_max_ns"])
        sums.update({key: n for key, n in row.items() if key not in keys})
        sums["busy_max_ns"] = longest
    # Counters are equal if they differ in zeroes only.
    if have != want:
        fail(f"link_1s: {len(have)} of {len(want)}: {[(k, have.get(k), want[k]) for k in want if have.get(k) != want[k]][:2]}")


def compare_comms(rows, sessions, messages_of):
    want = Counter()
    for session in sessions:
        for table, lines in zip(COUNTED, (session.ops, messages_of(session), session.calls)):
            for line in lines:
                if line["communicator"] is not None:
                    want[line["job"], line["host"], line["communicator"], line["rank"], line["pid"], table] += 1
    have = Counter()
    for row in rows:
        for table, column in COUNTED.items():
            have[row["job"], row["host"], row["communicator"], row["rank"], row["pid"], table] += row[column]
    if have != want:
        fail(f"comm: {have - want} {want - have}")


# Keys that an older version wrote, and no table has.
NO_COLUMNS = {"records_not_captured"}


def compare_hosts(rows, sessions):
    if len(rows) < len(sessions):
        fail(f"host: {len(rows)} rows of {len(sessions)} recordings")
    for session in sessions:
        report = session.report
        known = {**report["clock"], **report["loss"], **{key: report[key] for key in ["host", "level", "state", "ncclflow"]}}
        known = {key: of for key, of in known.items() if key not in NO_COLUMNS}
        if not any(all(row[key] == of for key, of in known.items()) for row in rows):
            fail(f"host: no row has {known}: {rows[:1]}")


def is_close(a, b):
    if isinstance(a, float) or isinstance(b, float):
        return a is not None and b is not None and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    return a == b


def compare_query(name, rows, want):
    order = lambda row: [(cell is not None, str(cell)) for cell in row if not isinstance(cell, float)]
    have = sorted((tuple(row.values()) for row in rows), key=order)
    want = sorted(want, key=order)
    if len(have) != len(want) or not all(len(a) == len(b) and all(map(is_close, a, b)) for a, b in zip(have, want)):
        fail(f"{name}.sql: {len(have)} rows of {len(want)}: {[pair for pair in zip(have, want) if pair[0] != pair[1]][:3]}")
    return have


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tables")
    parser.add_argument("lines", nargs="+")
    parser.add_argument("--engine", action="append", choices=engines.ENGINES)
    parser.add_argument("--planned-messages", action="store_true", help="messages that were only planned have rows, too")
    parser.add_argument("--expect-waited-for", type=int, help="the others wait longest for this rank, by its launches")
    parser.add_argument("--expect-difference", type=int, help="`first_difference` gives this number, and no other")
    arguments = parser.parse_args()
    sessions = [Session(folder) for folder in arguments.lines]
    ops, messages, calls = ([row for s in sessions for row in rows(s)] for rows in (
        lambda s: s.ops, lambda s: s.messages, lambda s: s.calls))
    messages_of = lambda s: s.messages if arguments.planned_messages else s.measured
    answers = []
    for name in arguments.engine or ["duckdb"]:
        engine = engines.ENGINES[name](arguments.tables)
        table = lambda of: engine.rows(f"SELECT * FROM {of}")
        compare_rows("op", table("op"), ops)
        compare_rows("message", table("message"), [row for s in sessions for row in messages_of(s)])
        compare_rows("call", table("call"), calls)
        compare_links(table("link_1s"), messages)
        compare_comms(table("comm"), sessions, messages_of)
        compare_hosts(table("host"), sessions)
        found = {}
        for view in engines.VIEWS:
            found[view] = compare_query(view, table(view), getattr(expected, view)(ops))
        for query in engines.QUERIES:
            want = getattr(expected, query)(ops, messages)
            found[query] = compare_query(query, engine.rows(engines.query(query)), want)
        answers.append(found)
    differences = {row[2] for row in answers[0]["first_difference"]}
    if arguments.expect_difference is not None and differences != {arguments.expect_difference}:
        fail(f"the first difference is at {differences}, not at {arguments.expect_difference}")
    if arguments.expect_waited_for is not None:
        # Columns: job, communicator, rank, collectives, alone, alone_mean_us …
        rank = max(answers[0]["waited_for"], key=lambda row: row[5])[2]
        if rank != arguments.expect_waited_for:
            fail(f"rank {rank} is waited for longest, not rank {arguments.expect_waited_for}: {answers[0]['waited_for']}")
    counts = {"ops": len(ops), "messages": len(messages), "calls": len(calls)}
    counts["nics"] = sum(row["nic"] is not None for row in messages)
    print(json.dumps({**counts, **{name: len(rows) for name, rows in answers[0].items()}}))


if __name__ == "__main__":
    main()
