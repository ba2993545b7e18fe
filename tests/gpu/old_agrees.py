#!/usr/bin/env python3
"""Compares the measured sizes of a recording with what must have been sent, and with what the kernel's tracer saw.

    old_agrees.py OUT ISENDS RANKS ITERS ALLREDUCE_BYTES ALLGATHER_BYTES SEND_BYTES

OUT: the recording of a job that in each iteration has done a ring all-reduce of so many bytes, a ring all-gather of so many a rank, and
sent so many to the next rank, all with the SIMPLE protocol. ISENDS: what isend_sizes.py printed meanwhile. Ends with 0 if all agree.
"""

import collections
import glob
import json
import os
import sys


def main():
    out, isends = sys.argv[1:3]
    ranks, iters, all_reduce, all_gather, send = map(int, sys.argv[3:])
    wrong = []
    messages, without, received = collections.Counter(), collections.Counter(), collections.Counter()
    measured = collections.defaultdict(collections.Counter)
    for path in glob.glob(os.path.join(out, "*", "flow_steps_rank*.jsonl")):
        with open(path) as file:
            for line in map(json.loads, file):
                rank, size = line["rank"], line.get("bytes_measured")
                if line["op"] != "SEND":
                    received[rank] += size is not None
                    continue
                messages[rank] += 1
                without[rank] += size is None
                measured[line["pattern"]][rank] += size or 0
    total = collections.Counter()
    for of_rank in measured.values():
        total.update(of_rank)
    print(f"messages sent, by rank: {dict(messages)}; without a size: {sum(without.values())}; receives with one: {sum(received.values())}")

    def check(what, is_so):
        print(("agrees: " if is_so else "DIFFERS: ") + what)
        if not is_so:
            wrong.append(what)

    check("every message that was sent has a size", sorted(messages) == list(range(ranks)) and not any(without.values()))
    # Each rank leaves out two of the chunks, which are not all equal; with two ranks it sends each once.
    expected = 2 * (ranks - 1) * all_reduce * iters
    found = measured["RING_TWICE"]
    check(f"all-reduce, all ranks: {sum(found.values())} bytes, must be {expected}", sum(found.values()) == expected)
    if ranks == 2:
        check(f"all-reduce, each rank: {dict(found)}", set(found.values()) == {expected // 2})
    for what, pattern, expected in (
        ("all-gather", "RING", (ranks - 1) * all_gather * iters),
        ("send", "SEND", send * iters),
    ):
        found = measured[pattern]
        check(f"{what}, each rank: {dict(found)}, must be {expected}", [found[rank] for rank in range(ranks)] == [expected] * ranks)
    with open(isends) as file:
        seen = sorted(tuple(map(int, line.split()[1:])) for line in file)
    found = sorted((messages[rank], total[rank]) for rank in messages)
    check(f"ncclNetSocketIsend by the kernel's tracer (messages, bytes): {seen}, recorded: {found}", seen == found)
    with open(os.path.join(out, "session.json")) as file:
        session = json.load(file)
    counters = {key: session["model"][key] for key in ("unjoined_steps", "unfinished", "measured_otherwise")}
    check(f"counters: {counters}", not any(counters.values()))
    hits = sum(probe["hits"] for probe in session["probes"] if probe["function"] == "sendProxyProgress")
    check(f"hits where sizes are taken: {hits}", hits == sum(messages.values()))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
