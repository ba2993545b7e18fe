#!/usr/bin/env python3
"""One rank of a job whose launches have no proxy ops: kernels on symmetric memory, copy engines, one-sided calls. And the comparison of
what was recorded with what it called.

    launches.py --kind symmetric|copies|one-sided --library LIB --id-file FILE --wait-file FILE [--iters N]
    launches.py --compare FOLDER OUTPUT …

Environment of the first: RANK, WORLD_SIZE. Prints `ready PID`, waits for --wait-file, and prints a line `call {JSON}` for each call and `done
wrong N`. The second reads those lines, and holds each rank's lines of `proxy_flow` against them, call by call and in their order; the number of
lines of each kind is printed. Needs libnccl 2.27 (symmetric), 2.28 (copies), 2.29 (one-sided), GPUs that reach each other's memory, python3.
"""

import argparse
import array
import ctypes
import glob
import json
import os
import sys
import time

from direct_nccl import FLOAT32, SUM, Gpu, Library, communicator

SYMMETRIC = 1
SIZES = (1024, 65_536, 1_000_003, 4 << 20)


class WaitSignal(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("opCnt", "peer", "sigIdx", "ctx")]


def job(args):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpu, nccl = Gpu(rank), Library(args.library)
    comm = communicator(nccl, rank, world, args.id_file)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    largest = 4 * max(SIZES) * world

    def registered():
        address, window = ctypes.c_void_p(), ctypes.c_void_p()
        nccl.ncclMemAlloc(ctypes.byref(address), size(largest))
        nccl.ncclCommWindowRegister(comm, address, size(largest), ctypes.byref(window), SYMMETRIC)
        return address.value, window

    (mine, _), (result, result_window) = registered(), registered()
    gpu.write(mine, array.array("f", [rank + 1.0]) * (max(SIZES) * world))
    right, left = (rank + 1) % world, (rank - 1) % world
    called = []

    def note(function, count, peer=None):
        called.append({"function": function, "count": count, "bytes": 4 * count, "peer": peer})

    def all_reduce(count):
        nccl.ncclAllReduce(pointer(mine), pointer(result), size(count), FLOAT32, SUM, comm, gpu.stream)
        note("AllReduce", count)
        return sum(range(1, world + 1))

    def all_gather(count):
        nccl.ncclAllGather(pointer(mine), pointer(result), size(count), FLOAT32, comm, gpu.stream)
        note("AllGather", count)
        return 1

    def all_to_all(count):
        nccl.ncclAlltoAll(pointer(mine), pointer(result), size(count), FLOAT32, comm, gpu.stream)
        note("AlltoAll", count)
        return 1

    def put(count):
        nothing = ctypes.c_int(0)
        nccl.ncclPutSignal(
            pointer(mine), size(count), FLOAT32, right, result_window, size(0), nothing, nothing, ctypes.c_uint(0), comm, gpu.stream
        )
        note("PutSignal", count, right)
        wait = WaitSignal(1, left, 0, 0)
        nccl.ncclWaitSignal(1, ctypes.byref(wait), comm, gpu.stream)
        called.append({"function": "WaitSignal", "count": None, "bytes": 0, "peer": left})
        return left + 1

    operations = {"symmetric": [all_reduce, all_gather], "copies": [all_gather, all_to_all], "one-sided": [put]}[args.kind]
    for operation in operations:
        operation(SIZES[0])
    gpu.wait()
    called.clear()
    print(f"ready {os.getpid()}", flush=True)
    while not os.path.exists(args.wait_file):
        time.sleep(0.02)
    wrong = 0
    for _ in range(args.iters):
        for count in SIZES:
            for operation in operations:
                expected = operation(count)
                gpu.wait()
                wrong += gpu.read(result, 1)[0] != expected
    for call in called:
        print("call", json.dumps(call))
    print(f"done wrong {wrong}", flush=True)
    return wrong != 0


def compare(folder, outputs):
    failed, kinds = False, {}
    for rank, output in enumerate(outputs):
        with open(output, encoding="utf-8") as file:
            called = [json.loads(line[5:]) for line in file if line.startswith("call ")]
        lines = []
        for path in glob.glob(f"{folder}/*/proxy_flow_rank{rank}.jsonl"):
            with open(path, encoding="utf-8") as file:
                lines += [line for line in map(json.loads, file) if "launch" in line]
        lines.sort(key=lambda line: line["ts_ns"])
        for line in lines:
            kinds[line["launch"]] = kinds.get(line["launch"], 0) + 1
        told = []
        for line in lines:
            peers = [peer["peer"] for peer in line["peers"]]
            told.append({"function": line["coll"], "bytes": line["bytes"], "peer": peers[0] if peers else None})
        wanted = [{key: call[key] for key in ("function", "bytes", "peer")} for call in called]
        if told != wanted:
            failed = True
            at = next((at for at, pair in enumerate(zip(told, wanted)) if pair[0] != pair[1]), min(len(told), len(wanted)))
            print(f"rank {rank}: {len(told)} lines for {len(wanted)} calls; the first difference is number {at}:", told[at : at + 1], wanted[at : at + 1])
    print("lines by kind:", kinds)
    return failed or not kinds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", nargs="+")
    parser.add_argument("--kind", choices=("symmetric", "copies", "one-sided"))
    parser.add_argument("--library")
    parser.add_argument("--id-file")
    parser.add_argument("--wait-file")
    parser.add_argument("--iters", type=int, default=5)
    args = parser.parse_args()
    sys.exit(compare(args.compare[0], args.compare[1:]) if args.compare else job(args))


main()
