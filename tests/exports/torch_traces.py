#!/usr/bin/env python3
"""Traces of torch's profiler beside our exports.

torch_traces.py manifest ARCHIVE TRACE ORIGINAL RECORDER   `export -f perfetto --manifest`; TRACE is ORIGINAL, shifted
torch_traces.py shift TRACE OUT UNIX_NS              the same trace, with its first launch at that time
torch_traces.py make LINES OUT                       a trace of rank 0 in which each of its collectives has a kernel
torch_traces.py chakra FOLDER TRACE [LINES]          `export -f chakra --kineto`; with LINES, of a trace that was made of them

`manifest` takes the archive apart as Perfetto's docs/reference/perfetto-manifest.md says, and compares the times that come of it
with those at which torch's flight recorder noted the same calls. Says what differs, and exits with 1.
"""

import gzip
import json
import pathlib
import pickle
import sys
import tarfile
from collections import defaultdict

from sessions import Lines, fail, is_p2p, same

CLOCKS = {"REALTIME", "REALTIME_COARSE", "MONOTONIC", "MONOTONIC_COARSE", "MONOTONIC_RAW", "BOOTTIME"}


def load(path):
    data = pathlib.Path(path).read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def ns(micros):
    """Exactly: a float of today's microseconds loses nanoseconds."""
    whole, _, fraction = micros.partition(".")
    return int(whole) * 1000 + int((fraction + "000")[:3])


def trace(path):
    return json.loads(load(path), parse_float=str, parse_int=str)


def base(kineto):
    return int(trace(kineto)["baseTimeNanoseconds"])


def manifest(archive, kineto, original, recorder):
    with tarfile.open(archive) as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}
    text = members.pop("perfetto_manifest.json")
    # It is known by its content.
    if not b"".join(text.split()).startswith(b'{"perfetto_manifest"'):
        fail("the manifest does not begin as one")
    found = json.loads(text)["perfetto_manifest"]
    same("version", found["version"], 1)
    same("files", sorted(entry["path"] for entry in found["files"]), sorted(members))
    own = next(entry["path"] for entry in found["files"] if "clocks" not in entry)
    same("clock of the timeline", found["trace_time"], {"clock": "REALTIME", "file": own})
    (beside,) = [entry for entry in found["files"] if entry["path"] != own]
    if not beside["machine"]["name"]:
        fail("a machine without a name")
    same("what it is synchronised to", beside["clocks"]["sync_to"], {"file": own, "clock": "REALTIME"})
    same("the trace beside ours", members[beside["path"]], load(kineto))
    # The reference clock reads T + offset_ns where the file reads T.
    offset = beside["clocks"]["offset_ns"]
    if not isinstance(offset, int):
        fail(f"offset_ns is {offset}")
    shifted = base(kineto) - base(original)
    noted = defaultdict(list)
    with gzip.open(recorder) as file:
        for entry in pickle.load(file)["entries"]:
            noted[entry["profiling_name"]].append(entry["time_created_ns"] + shifted)
    calls = 0
    for event in trace(kineto)["traceEvents"]:
        if event.get("cat") == "user_annotation" and event["name"] in noted:
            begin = ns(event["ts"]) + offset
            # torch notes a call while its annotation is open.
            if not any(begin <= at <= begin + ns(event["dur"]) for at in noted[event["name"]]):
                fail(f"{event['name']} at {begin}: the flight recorder has it at no such time")
            calls += 1
    print(json.dumps({"calls": calls, "trace_bytes": len(members[own])}))
    pathlib.Path(archive).with_suffix(".pftrace").write_bytes(members[own])


def shift(kineto, out, at):
    data = json.loads(load(kineto))
    launches = [event["ts"] for event in data["traceEvents"] if event.get("cat") in ("cuda_runtime", "cuda_driver")]
    data["baseTimeNanoseconds"] = int(at) - round(min(launches) * 1000)
    pathlib.Path(out).write_bytes(gzip.compress(json.dumps(data).encode()))


def collectives(lines, rank):
    """Of a rank, by the moment of the launch: ops whose launch has one collective only."""
    found = defaultdict(dict)
    for op in lines.ops:
        if op["rank"] == rank:
            found[op["ts_ns"] + op["offset"]][op["communicator"], op["seq"], is_p2p(op)] = op
    return {at: next(iter(ops.values())) for at, ops in found.items() if len(ops) == 1 and not is_p2p(next(iter(ops.values())))}


def made_events(lines):
    events, at_last = [], 0
    for number, (at, op) in enumerate(sorted(collectives(lines, 0).items())):
        if at - at_last < 1_000_000:
            continue
        at_last = at

        def slice_(name, category, begin, duration, track, correlation):
            text = f"{begin // 1000}.{begin % 1000:03}"
            events.append(
                {"ph": "X", "cat": category, "name": name, "pid": track[0], "tid": track[1], "ts": text, "dur": duration / 1000, "args": {"correlation": correlation}}
            )

        # Launched and run before the collective; launched before, and still running; launched after it.
        host, compute, other, nccl = (77, 1), (0, 7), (0, 8), (0, 20)
        slice_("cudaLaunchKernel", "cuda_runtime", at - 60_000, 3_000, host, 10 * number + 1)
        slice_(f"before_{number}", "kernel", at - 50_000, 20_000 + number, compute, 10 * number + 1)
        slice_("cudaLaunchKernel", "cuda_runtime", at - 55_000, 3_000, host, 10 * number + 2)
        slice_(f"beside_{number}", "kernel", at - 45_000, 400_000, other, 10 * number + 2)
        slice_("cudaLaunchKernelExC", "cuda_runtime", at - 9_000, 5_000, host, 10 * number + 3)
        slice_(f"ncclDevKernel_{op['coll']}_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "kernel", at + 5_000, 100_000 + number, nccl, 10 * number + 3)
        slice_("cudaMemcpyAsync", "cuda_runtime", at + 2_000, 3_000, host, 10 * number + 4)
        slice_(f"after_{number}", "gpu_memcpy", at + 200_000, 7_000, compute, 10 * number + 4)
        # Annotations of the device's timeline are no work.
        events.append({"ph": "X", "cat": "gpu_user_annotation", "name": "step", "pid": 0, "tid": 7, "ts": f"{at // 1000}", "dur": 50})
    return events


def make(folder, out):
    lines = Lines([folder])
    events = made_events(lines)
    text = json.dumps({"traceEvents": events, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2}})
    pathlib.Path(out).write_text(text)
    print(json.dumps({"collectives": sum(event["name"].startswith("ncclDevKernel") for event in events)}))


def chakra(folder, kineto, lines):
    from chakra_traces import jsonize

    data = trace(kineto)
    offset = int(data.get("baseTimeNanoseconds", 0))
    rank = int(data["distributedInfo"]["rank"])
    nodes = jsonize(pathlib.Path(folder) / f"ncclflow.{rank}.et")
    by_id = {node["id"]: node for node in nodes}
    want, launches = [], {}
    for event in data["traceEvents"]:
        correlation = event.get("args", {}).get("correlation")
        if event.get("cat") in ("cuda_runtime", "cuda_driver"):
            launches.setdefault(correlation, ns(event["ts"]))
    for event in data["traceEvents"]:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and not event["name"].startswith("nccl"):
            begin, duration = ns(event["ts"]) + offset, ns(event["dur"])
            want.append((event["name"], begin // 1000, duration, max(1, (duration + 500) // 1000), event["pid"], event["tid"], begin))
    have = [node for node in nodes if node["type"] == "COMP_NODE"]
    shown = [(node["name"], int(node["startTimeMicros"]), node["duration_ns"], int(node["durationMicros"])) for node in have]
    same("compute nodes", shown, [of[:4] for of in want])
    for node in nodes:
        for of in [*node["deps"], *map(int, node.get("ctrlDeps", []))]:
            if of not in by_id or of >= node["id"]:
                fail(f"{node['id']} waits for {of}, which does not come before it")
    # On a stream, each waits for the one before it.
    streams, chains = defaultdict(list), 0
    for node in have:
        streams[node["trace_stream"]].append(node)
    same("streams", len(streams), len({of[4:6] for of in want}))
    of_stream = sorted(len(of) for of in streams.values())
    same("nodes of the streams", of_stream, sorted(sum(of[4:6] == track for of in want) for track in {of[4:6] for of in want}))
    for of in streams.values():
        for before, node in zip(of, of[1:]):
            same(f"what {node['name']} waits for on its stream", node["deps"], [before["id"]])
            chains += 1
    timed = 0
    if lines:
        ops = collectives(Lines([lines]), rank)
        made = [event for event in made_events(Lines([lines])) if event["name"].startswith("ncclDevKernel")]
        by_seq = {(node["comm_hash"], node["seq"]): node for node in nodes if node["type"] == "COMM_COLL_NODE"}
        by_name = {node["name"]: node for node in have}
        for event in made:
            number = int(event["args"]["correlation"]) // 10
            op = ops[ns(event["ts"]) - 5_000]
            node = by_seq[op["communicator"], op["seq"]]
            same(f"time of {op['seq']}", node.get("duration_ns"), 100_000 + number)
            same(f"what {op['seq']} waits for", list(map(int, node.get("ctrlDeps", []))), [by_name[f"before_{number}"]["id"]])
            same(f"what after_{number} waits for", list(map(int, by_name[f"after_{number}"].get("ctrlDeps", []))), [node["id"]])
            timed += 1
        same("nodes with a time", sum("duration_ns" in node for node in by_seq.values()), timed)
    print(json.dumps({"compute": len(have), "chains": chains, "timed": timed}))


def main():
    what, *arguments = sys.argv[1:]
    if what == "chakra":
        arguments += [None] * (3 - len(arguments))
    {"manifest": manifest, "shift": shift, "make": make, "chakra": chakra}[what](*arguments)


main()
