#!/usr/bin/env python3
"""Whether two recordings of one job, made at the same time with --probes plan and --probes per-call, have the same records.

    compare_recordings.py PLANS CALLS

Left out is what depends on where an op was seen: times, the thread, whether it was derived, and what only launches of graphs tell. Says what differs, and ends with 0
if nothing does and there was something to compare.
"""

import collections
import json
import pathlib
import sys

OF_THE_PLACE = {"tid", "derived"}


def lines(folder):
    """Of each file, how often each record is in it."""
    files = {}
    for path in sorted(pathlib.Path(folder).glob("*/*.jsonl")):
        records = collections.Counter()
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if "graphLaunch" in record:
                continue  # call by call, operations are not tied to graphs
            kept = {key: value for key, value in record.items() if key not in OF_THE_PLACE and not key.endswith("ts_ns")}
            records[json.dumps(kept, sort_keys=True)] += 1
        files[str(path.relative_to(folder))] = records
    return files


def main():
    plans, calls = (lines(folder) for folder in sys.argv[1:3])
    compared = different = 0
    for file in sorted(plans.keys() | calls.keys()):
        ours, theirs = plans.get(file, collections.Counter()), calls.get(file, collections.Counter())
        compared += theirs.total()
        for word, more in (("plans only", ours - theirs), ("calls only", theirs - ours)):
            different += more.total()
            for record, times in list(more.items())[:2]:
                print(f"{file}: {word} ({more.total()} such), {times} times: {record}")
    session = json.loads((pathlib.Path(sys.argv[1]) / "session.json").read_text())
    print(f"{compared} records compared, {different} differ; model of plans: {json.dumps(session['model'])}")
    sys.exit(0 if compared and not different else 1)


if __name__ == "__main__":
    main()
