#!/usr/bin/env python3
"""Runs NVIDIA's exporter of NCCL Inspector's records on ours, and compares its numbers with those of `ncclflow summary`.

inspector_exporter.py EXPORTER RECORDS SUMMARY

EXPORTER is perf_summary_exporter.py of NCCL 2.28 to 2.30 (plugins/profiler/inspector/exporter/example), or the folder that it is
in; RECORDS a folder of `ncclflow export -f inspector --inspector-version v4.0`; SUMMARY the output of `ncclflow summary --json` of
the same recordings. The exporter needs pandas, pyarrow, duckdb, matplotlib and tqdm. Says what differs, and exits with 1.
"""

import csv
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict

from sessions import fail, same


def bus_bandwidth(function, size, n_ranks, time_us):
    """GB/s, as nccl-tests' PERFORMANCE.md has it."""
    factor = {
        "AllReduce": 2 * (n_ranks - 1) / n_ranks,
        "AllGather": n_ranks - 1,
        "ReduceScatter": n_ranks - 1,
        "Broadcast": 1,
    }
    return size * factor[function] / time_us / 1e3


def exported(exporter, records, folder):
    """(function, id, number, size, mean bandwidth, ranks) of each row that the exporter wrote."""
    if exporter.is_dir():
        exporter = exporter / "perf_summary_exporter.py"
    environment = {**os.environ, "MPLBACKEND": "Agg", "MPLCONFIGDIR": folder}
    command = [sys.executable, str(exporter), "--input_dir", str(records), "--output_dir", f"{folder}/analysis"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0 or "Done!" not in done.stdout:
        fail(f"the exporter ended with {done.returncode}: {done.stderr[-2000:]}")
    log = pathlib.Path(folder, "analysis/output.log").read_text()
    refused = [line for line in log.splitlines() if " ERROR " in line or " CRITICAL " in line]
    if refused:
        fail(f"the exporter refuses {len(refused)} lines or files: {refused[0]}")
    name = re.compile(r"summary_(?P<topology>[a-z-]+)_(?P<function>[A-Za-z]+)_(?P<size>\d+)\.csv")
    for path in sorted(pathlib.Path(folder, "analysis/summary").glob("msg_size_*/summary_*.csv")):
        function = name.fullmatch(path.name)["function"]
        with path.open() as rows:
            for row in csv.DictReader(rows):
                bandwidth, ranks = float(row["mean_coll_busbw_gbs"]), int(row["log_count"])
                yield function, int(row["id"], 16), int(row["coll_sn"]), int(row["coll_msg_size_bytes"]), bandwidth, ranks


def main():
    exporter, records, summary = (pathlib.Path(path) for path in sys.argv[1:])
    times = defaultdict(list)
    ranks = Counter()
    for rank in json.loads(summary.read_text())["ranks"]:
        communicator = int(rank["communicator"], 16)
        ranks[communicator] += 1
        for op in rank["ops"]:
            if op["unended"] == 0:
                # Sends and receives have odd numbers.
                times[communicator, op["seq"]].append((op["last_end_ns"] - op["first_start_ns"]) // 1000)
    compared, partly, functions = 0, 0, Counter()
    with tempfile.TemporaryDirectory() as folder:
        for function, communicator, number, size, bandwidth, told in exported(exporter, records, folder):
            of_ranks = times[communicator, 2 * number]
            # Of a rank that lacks messages the records have no time.
            if told != len(of_ranks) or told != ranks[communicator]:
                partly += 1
                continue
            wanted = [bus_bandwidth(function, size, ranks[communicator], time_us) for time_us in of_ranks]
            mean = sum(wanted) / len(wanted)
            if abs(bandwidth - mean) > 1e-9 * mean:
                fail(f"{function} {number} of {communicator:#x}, {size} bytes: {bandwidth} GB/s, not {mean}")
            compared += 1
            functions[function, size] += 1
    lines = sum(len(path.read_text().splitlines()) for path in records.glob("*.log"))
    same("records", lines >= compared * min(ranks.values()), True)
    print(json.dumps({"compared": compared, "partly": partly, "records": lines, "functions": sorted({f for f, _ in functions})}))


main()
