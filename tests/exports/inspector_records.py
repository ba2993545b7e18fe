#!/usr/bin/env python3
"""Compares records of `ncclflow export -f inspector` with the JSON lines of the same recordings.

inspector_records.py FOLDER LINES…

Reads the records as NCCL Inspector's README (v4.3) documents them: a marker (`dump_stats`) carries header and metadata of so
many records after it, of each kind. Says what differs, and exits with 1.
"""

import json
import pathlib
import sys
from collections import defaultdict

from sessions import Lines, begin, fail, is_p2p, same

COUNTS = {"coll_perf": "coll_records", "p2p_perf": "p2p_records", "proxy_trace": "proxy_records"}


def records(path):
    """(kind, header, metadata, record) of each line that is no marker."""
    header, metadata, left = None, None, {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if "dump_stats" in record:
            if any(left.values()):
                fail(f"{path}: a marker comes before all records of the one before: {left}")
            header, metadata = record["header"], record["metadata"]
            same("version", metadata["inspector_output_format_version"], "v4.3")
            left = {kind: record["dump_stats"][key] for kind, key in COUNTS.items()}
            continue
        (kind,) = record
        left[kind] -= 1
        if left[kind] < 0:
            fail(f"{path}: more {kind} than the marker says")
        yield kind, header, metadata, record[kind]
    if any(left.values()):
        fail(f"{path}: records are missing: {left}")


def bandwidth(function, size, n_ranks, time_us):
    """Of the algorithm and of the bus, GB/s, as nccl-tests has them."""
    whole = size * n_ranks if function in ("AllGather", "ReduceScatter") else size
    factor = {"AllReduce": 2 * (n_ranks - 1) / n_ranks, "AllGather": (n_ranks - 1) / n_ranks, "ReduceScatter": (n_ranks - 1) / n_ranks}
    algorithm = whole / time_us / 1e3
    return algorithm, algorithm * factor.get(function, 1)


def main():
    lines = Lines(sys.argv[2:])
    ops, measured = defaultdict(list), defaultdict(list)
    for o in lines.ops:
        ops[o["commHash"], o["rank"], is_p2p(o), o["seq"] >> 1].append(o)
    for m in lines.messages:
        measured[m["commHash"], m["rank"], m["pattern"] in ("SEND", "RECV"), m["seq"] >> 1].append(m)

    seen, timed, steps, sums, have_steps, last_sn = set(), 0, 0, 0, [], defaultdict(int)
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.log")):
        for kind, header, metadata, record in records(path):
            # Inspector's hash has no leading zeroes.
            rank = (f"0x{int(header['id'], 16):016x}", header["rank"])
            if kind == "proxy_trace":
                number = (path.name, rank)
                same("record_sn", record["record_sn"], last_sn[number] + 1)
                last_sn[number] += 1
                key = (*rank, record["parent_type"] == "p2p", record["parent_sn"])
                if record["record_type"] == "proxy_op":
                    sums += record.get("trans_size_bytes", 0)
                    continue
                steps += 1
                times = tuple(sorted(record.get("event_trace_ts", {}).items()))
                have_steps.append((*key, record["channel_id"], record["peer"], record["direction"], record["step"], record.get("trans_size_bytes"), times))
                continue
            prefix = kind.removesuffix("_perf")
            key = (*rank, prefix == "p2p", record[f"{prefix}_sn"])
            if key in seen:
                fail(f"{key} comes twice")
            seen.add(key)
            channels = ops[key]
            if not channels:
                fail(f"{key} is no op")
            one = channels[0]
            same("function", record[prefix], one["coll"])
            same("size of the communicator", header["n_ranks"], one["nRanks"])
            same("process", (metadata["pid"], metadata["hostname"]), (one["pid"], one["host"]))
            if prefix == "coll":
                same("algorithm", (record.get("coll_algo"), record["coll_proto"]), (one["algorithm"], one["protocol"]))
            else:
                same("peer", record["p2p_peer"], one["root"])
            size = record.get(f"{prefix}_msg_size_bytes")
            if prefix == "p2p" and one.get("bytes") is not None:
                same("bytes", size, one["bytes"])
            of = measured[key]
            ends = [(begin(m), m.get("t_end_ns")) for m in of]
            is_whole = all(o.get("measured") == "as_planned" and not o["incomplete"] for o in channels)
            is_whole = is_whole and ends and all(None not in times for times in ends)
            time_us = (max(e for _, e in ends) - min(b for b, _ in ends)) // 1000 if is_whole else None
            same(f"time of {key}", record.get(f"{prefix}_exec_time_us"), time_us)
            if time_us:
                timed += 1
                same("source", record[f"{prefix}_timing_source"], "proxy_cpu")
                if size is not None:
                    for name, want in zip(("algobw", "busbw"), bandwidth(one["coll"], size, header["n_ranks"], time_us)):
                        if abs(record[f"{prefix}_{name}_gbs"] - want) > 1e-9 * max(want, 1):
                            fail(f"{name} of {key}: {record}, not {want}")
            elif f"{prefix}_busbw_gbs" in record:
                fail(f"a bandwidth without a time: {record}")
    same("ops", sorted(seen), sorted(ops))

    phases = {
        "SEND": {"t_start_ns": "send_gpu_wait_ts", "t_ready_ns": "send_peer_wait_ts", "t_sent_ns": "send_wait_ts"},
        "RECV": {"t_posted_ns": "recv_wait_ts", "t_arrived_ns": "recv_flush_wait_ts", "t_handed_ns": "recv_gpu_wait_ts"},
    }
    want_steps = []
    for key, of in measured.items():
        for m in of:
            names = {**phases[m["op"]], "t_end_ns": "proxy_step_stop_ts"}
            times = {names[moment]: (m[moment] + m["offset"]) // 1000 for moment in names if m.get(moment) is not None}
            if times:
                size = m.get("bytes_measured")
                direction = {"SEND": "send", "RECV": "recv"}[m["op"]]
                want_steps.append((*key, m["channel"], m["peer"], direction, m["step"], size, tuple(sorted(times.items()))))
    same("steps", have_steps, want_steps)
    same("bytes of all steps", sums, sum(m.get("bytes_measured") or 0 for m in lines.messages))
    print(json.dumps({"ops": len(seen), "timed": timed, "steps": steps, "bytes": sums}))


main()
