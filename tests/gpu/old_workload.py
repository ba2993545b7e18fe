#!/usr/bin/env python3
"""One rank of a job on real GPUs that uses a given libnccl.so.2 by itself, through ctypes: for releases that torch cannot be built on.

Environment: RANK, WORLD_SIZE, and CUDA_VISIBLE_DEVICES, if it is set, with a GPU for each rank, which can be the same one. Prints `ready PID`
when its communicator and all connections are up, waits until the file --wait-file exists, runs the operations, prints `done wrong N …` with
the bytes of each operation and the seconds that they took, and ends with 0 only if every result was right. The driver's API serves for
memory and the stream; nothing but Python is needed.
"""

import argparse
import array
import ctypes
import os
import sys
import time

from direct_nccl import FLOAT32, SUM, Gpu, Library, communicator

# Elements of float32: of the whole vector, of one rank's part, of what is sent. None of them fills its last chunk.
ALL_REDUCE, ALL_GATHER, SEND = 12_345_678, 3_456_789, 7_777_777


def pattern(elements, of_index):
    """Small whole numbers, whose sums are exact."""
    period = array.array("f", (of_index(index) for index in range(251)))
    return (period * (elements // 251 + 1))[:elements]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--id-file", required=True, help="through it the first rank gives the others the communicator's id")
    parser.add_argument("--wait-file", required=True)
    parser.add_argument("--iters", type=int, default=3)
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    gpu, nccl = Gpu(rank), Library(args.library)
    version = ctypes.c_int()
    nccl.ncclGetVersion(ctypes.byref(version))
    comm = communicator(nccl, rank, world, args.id_file)

    right, left = (rank + 1) % world, (rank - 1) % world
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    mine, gathered = gpu.memory(max(ALL_REDUCE, SEND)), gpu.memory(ALL_GATHER * world)
    result = gpu.memory(max(ALL_REDUCE, SEND))
    gpu.write(mine, pattern(max(ALL_REDUCE, SEND), lambda index: index + rank))

    def all_reduce(elements):
        nccl.ncclAllReduce(pointer(mine), pointer(result), size(elements), FLOAT32, SUM, comm, gpu.stream)

    def all_gather(elements):
        nccl.ncclAllGather(pointer(mine), pointer(gathered), size(elements), FLOAT32, comm, gpu.stream)

    def send_and_receive(elements):
        nccl.ncclGroupStart()
        nccl.ncclSend(pointer(mine), size(elements), FLOAT32, right, comm, gpu.stream)
        nccl.ncclRecv(pointer(result), size(elements), FLOAT32, left, comm, gpu.stream)
        nccl.ncclGroupEnd()

    # Connections are made on first use: all of them before anything is recorded.
    for operation, elements in ((all_reduce, ALL_REDUCE), (all_gather, ALL_GATHER), (send_and_receive, SEND)):
        operation(elements)
    gpu.wait()
    print(f"ready {os.getpid()} nccl {version.value}", flush=True)
    while not os.path.exists(args.wait_file):
        time.sleep(0.02)

    ranks = sum(range(world))
    sums = pattern(ALL_REDUCE, lambda index: world * index + ranks)
    parts = [pattern(ALL_GATHER, lambda index, of=of: index + of) for of in range(world)]
    received = pattern(SEND, lambda index: index + left)
    nothing = array.array("f", bytes(4 * max(ALL_REDUCE, SEND, ALL_GATHER * world)))
    wrong, seconds = 0, 0.0

    def timed(operation, elements):
        begin = time.monotonic()
        operation(elements)
        gpu.wait()
        return time.monotonic() - begin

    for _ in range(args.iters):
        gpu.write(result, nothing[: max(ALL_REDUCE, SEND)])
        seconds += timed(all_reduce, ALL_REDUCE)
        wrong += gpu.read(result, ALL_REDUCE).tobytes() != sums.tobytes()
        gpu.write(gathered, nothing[: ALL_GATHER * world])
        seconds += timed(all_gather, ALL_GATHER)
        for number, part in enumerate(parts):
            wrong += gpu.read(gathered + 4 * ALL_GATHER * number, ALL_GATHER).tobytes() != part.tobytes()
        gpu.write(result, nothing[: max(ALL_REDUCE, SEND)])
        seconds += timed(send_and_receive, SEND)
        wrong += gpu.read(result, SEND).tobytes() != received.tobytes()
    moved = f"allreduce {4 * ALL_REDUCE} allgather {4 * ALL_GATHER} send {4 * SEND}"
    print(f"done wrong {wrong} {moved} seconds {seconds:.3f}", flush=True)
    nccl.ncclCommDestroy(comm)
    sys.stdout.flush()
    os._exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
