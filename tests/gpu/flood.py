#!/usr/bin/env python3
"""One rank of a job that calls small all-reduces back to back, through ctypes and without torch's own time between them.

Environment: RANK, WORLD_SIZE. Prints `ready PID` when its communicator is up, waits until the file --wait-file exists, calls, and prints
`done COUNT`. The ranks agree on COUNT: the first one says in a file how many calls it has made when its time is up.
"""

import argparse
import ctypes
import os
import time

import nvidia.nccl

from direct_nccl import FLOAT32, SUM, Gpu, Library, communicator


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wait-file", required=True)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--elements", type=int, default=16384)
    # The stream is waited for as often, so that no rank runs ahead for long.
    parser.add_argument("--burst", type=int, default=1000, help="calls between two looks at the time")
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    beside = os.path.dirname(args.wait_file)

    gpu, nccl = Gpu(rank), Library(os.path.join(list(nvidia.nccl.__path__)[0], "lib", "libnccl.so.2"))
    comm = communicator(nccl, rank, world, os.path.join(beside, "id"))
    memory = ctypes.c_void_p(gpu.memory(args.elements))
    size, call = ctypes.c_size_t(args.elements), nccl.functions.ncclAllReduce
    print(f"ready {os.getpid()}", flush=True)
    while not os.path.exists(args.wait_file):
        time.sleep(0.02)

    end, bursts = time.monotonic() + args.seconds, 0
    # All ranks make the same number of bursts: the first one says before each whether there is one.
    while True:
        told = os.path.join(beside, f"burst{bursts}")
        if rank == 0:
            with open(told + ".new", "w") as file:
                file.write("more" if time.monotonic() < end else "over")
            os.rename(told + ".new", told)
        while not os.path.exists(told):
            time.sleep(0.0001)
        with open(told) as file:
            if file.read() == "over":
                break
        for _ in range(args.burst):
            if call(memory, memory, size, FLOAT32, SUM, comm, gpu.stream) != 0:
                raise SystemExit("ncclAllReduce failed")
        gpu.wait()
        bursts += 1
    print(f"done {bursts * args.burst}", flush=True)


main()
