#!/usr/bin/env python3
"""Call stacks behind kernels, out of Kineto's JSON: what `ncclflow stacks --json` must say. Standard library only, everything in
memory, every slice looked at for every launch.

Goes by flow events: kernel, event `f` at its begin, event `s` of the same id, the slice that begins there. (ncclflow goes by
`correlation`, where there is one.)
"""

import argparse
import collections
import decimal
import gzip
import json
import re
import sys

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
CUDA = ("cuda_runtime", "cuda_driver")


def load(path):
    with open(path, "rb") as file:
        data = file.read()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    trace = json.loads(data, parse_float=decimal.Decimal)
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    for event in events:
        if "ts" in event:
            event["begin"] = int(decimal.Decimal(event["ts"]) * 1000)
            event["end"] = event["begin"] + int(decimal.Decimal(event.get("dur", 0)) * 1000)
    return events


def matches(pattern, name):
    if "%" not in pattern:
        return pattern == name
    parts = {"%": ".*", "_": "."}
    regex = "".join(parts.get(char, re.escape(char)) for char in pattern)
    return re.fullmatch(regex, name, re.DOTALL | re.IGNORECASE) is not None


def frame(event):
    name = event["name"]
    if event["cat"] in CUDA:
        return name
    return re.sub(r" at 0x[0-9a-fA-F]+", "", name).rstrip("0123456789")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trace")
    parser.add_argument("--kernel-name", default="ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)")
    parser.add_argument("--stack-depth", type=int, default=12)
    parser.add_argument("--function-name")
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--start-ts", type=int)
    parser.add_argument("--duration", type=int)
    parser.add_argument("--text", action="store_true")
    arguments = parser.parse_args()

    events = load(arguments.trace)
    slices = [event for event in events if event.get("ph") == "X"]
    threads = [event for event in slices if event.get("cat") not in DEVICE]

    begin, end = None, None
    if arguments.start_ts is not None:
        begin, end = arguments.start_ts, arguments.start_ts + arguments.duration
    elif arguments.function_name is not None:
        found = [event for event in threads if matches(arguments.function_name, event["name"])]
        found.sort(key=lambda event: event["begin"])
        begin, end = found[arguments.index]["begin"], found[arguments.index]["end"]

    sources, sinks = {}, {}
    for event in events:
        if event.get("cat") == "ac2g" and event["ph"] == "s":
            sources[event["id"]] = event
        elif event.get("cat") == "ac2g":
            sinks[(event["pid"], event["tid"], event["begin"])] = event["id"]

    counts = collections.Counter()
    for kernel in slices:
        if kernel.get("cat") != "kernel" or not matches(arguments.kernel_name, kernel["name"]):
            continue
        source = sources[sinks[(kernel["pid"], kernel["tid"], kernel["begin"])]]
        thread = [e for e in threads if (e["pid"], e["tid"]) == (source["pid"], source["tid"])]
        launch = [e for e in thread if e["cat"] in CUDA and e["begin"] == source["begin"]]
        assert len(launch) == 1, launch
        launch = launch[0]
        if begin is not None and not begin < launch["begin"] < end:
            continue
        callers = [e for e in thread if e is not launch and e["begin"] <= launch["begin"] < e["end"]]
        callers.sort(key=lambda event: (event["begin"], -event["end"]))
        if arguments.stack_depth < len(callers):
            callers = callers[len(callers) - arguments.stack_depth :]
        counts[tuple(frame(event) for event in callers + [launch])] += 1

    stacks = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    if arguments.text:
        for frames, count in stacks:
            sys.stdout.write("\n ->\n".join(frames) + f"\nAppeared {count} times\n\n")
    else:
        listed = [{"frames": list(frames), "count": count} for frames, count in stacks]
        json.dump({"kernels": sum(counts.values()), "stacks": listed}, sys.stdout)


main()
