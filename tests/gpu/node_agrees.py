#!/usr/bin/env python3
"""Do `ps`, the metrics and `top` of one run say what the job did? Used by node.sh; ends with 0 only if all agree."""

import argparse
import json
import os
import re
import sys
from collections import defaultdict

COLLECTIVES = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast")


def samples(path):
    """(name, labels, value) of each sample of an OpenMetrics text."""
    for line in open(path):
        found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line.strip())
        if found and not line.startswith("#"):
            yield found[1], dict(re.findall(r'(\w+)="([^"]*)"', found[2] or "")), float(found[3])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--pids", required=True)
    args = parser.parse_args()
    read = lambda name: json.load(open(os.path.join(args.folder, name)))
    pids = {int(pid) for pid in args.pids.split(",")}
    wrong = []

    def expect(what, have, want):
        print(f"{what}: {have}" + ("" if have == want else f", and {want} are due"))
        if have != want:
            wrong.append(what)

    # ps: each process once, with its rank of as many.
    processes = [process for process in read("ps.json")["processes"] if process["pid"] in pids]
    ranks = sorted(comm["rank"] for process in processes for comm in process["communicators"])
    expect("ps: ranks", ranks, list(range(args.ranks)))

    # Metrics: every op and its bytes, by rank and function.
    ops, nbytes, lost = defaultdict(float), defaultdict(float), 0
    for name, labels, value in samples(os.path.join(args.folder, "after.txt")):
        if name == "ncclflow_ops_total":
            ops[labels["rank"], labels["coll"]] += value
        elif name == "ncclflow_op_bytes_total":
            nbytes[labels["rank"], labels["coll"]] += value
        elif name == "ncclflow_records_lost_total":
            lost += value
    part = {"ReduceScatter": args.elements // args.ranks}
    for coll in COLLECTIVES:
        for rank in range(args.ranks):
            expect(f"metrics: {coll} of rank {rank}", ops[str(rank), coll], float(args.iterations))
            due = float(args.iterations * 4 * part.get(coll, args.elements))
            expect(f"metrics: bytes of {coll} of rank {rank}", nbytes[str(rank), coll], due)
    expect("metrics: records lost", lost, 0)

    # top: every rank, at the job's own pace; it looked for five seconds in the middle.
    pace = args.iterations * len(COLLECTIVES) / args.seconds
    seen = sorted((rank for rank in read("top.json")["ranks"] if rank["pid"] in pids), key=lambda rank: rank["rank"])
    expect("top: ranks", [rank["rank"] for rank in seen], list(range(args.ranks)))
    for rank in seen:
        ratio = rank["opsPerSecond"] / pace
        print(f"top: rank {rank['rank']}: {rank['opsPerSecond']:.1f} ops/s, {ratio:.2f} of the job's {pace:.1f}")
        if not 0.8 < ratio < 1.25:
            wrong.append("the pace")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
