#!/usr/bin/env python3
"""A long trace made of a short one of Kineto's: repeat.py INPUT OUTPUT BYTES. Each repetition is 50 ms later, with correlations and flows
of its own. Says how many repetitions it has. Standard library only."""

import gzip
import json
import sys

APART_US = 50_000
IDS = 10_000


def main():
    source, target, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with gzip.open(source) as file:
        trace = json.load(file)
    events = [event for event in trace.pop("traceEvents") if "ts" in event and event.get("cat") != "Trace"]
    written = repeated = 0
    with open(target, "w") as out:
        out.write(json.dumps(trace)[:-1] + ', "traceEvents": [\n  {}')
        while written < size:
            for event in events:
                event = dict(event, ts=round(event["ts"] + repeated * APART_US, 3))
                if "id" in event:
                    event["id"] += repeated * IDS
                if "correlation" in event.get("args", {}):
                    event["args"] = dict(event["args"], correlation=event["args"]["correlation"] + repeated * IDS)
                written += out.write(",\n  " + json.dumps(event))
            repeated += 1
        out.write("\n]}\n")
    print(repeated)


main()
