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

FLOAT32, SUM = 7, 0
# Elements of float32: of the whole vector, of one rank's part, of what is sent. None of them fills its last chunk.
ALL_REDUCE, ALL_GATHER, SEND = 12_345_678, 3_456_789, 7_777_777


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


class Library:
    """Calls functions that return 0, or ends the program."""

    def __init__(self, path):
        # Its own symbols before all others: there may be another libnccl in the process.
        self.functions = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)

    def __getattr__(self, name):
        function = getattr(self.functions, name)

        def call(*arguments):
            result = function(*arguments)
            if result != 0:
                sys.exit(f"{name} returned {result}")

        return call


class Gpu:
    def __init__(self, rank):
        # The only one that this process sees: then the driver's current device is also that of the runtime inside of libnccl.
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        mine = visible.split(",")[rank] if visible else str(rank)
        os.environ["CUDA_VISIBLE_DEVICES"] = mine
        if visible and visible.split(",").count(mine) > 1:
            # NCCL refuses two ranks of one host on one GPU.
            os.environ["NCCL_HOSTID"] = f"host of rank {rank}"
        self.cuda = Library("libcuda.so.1")
        device, context, self.stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.cuda.cuInit(0)
        self.cuda.cuDeviceGet(ctypes.byref(device), 0)
        self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        self.cuda.cuCtxSetCurrent(context)
        self.cuda.cuStreamCreate(ctypes.byref(self.stream), 1)

    def memory(self, elements):
        address = ctypes.c_uint64()
        self.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4 * elements))
        return address.value

    def write(self, address, values):
        source, count = values.buffer_info()
        self.cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(address), ctypes.c_void_p(source), ctypes.c_size_t(4 * count))

    def read(self, address, elements):
        values = array.array("f", bytes(4 * elements))
        target, _ = values.buffer_info()
        self.cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(target), ctypes.c_uint64(address), ctypes.c_size_t(4 * elements))
        return values

    def wait(self):
        self.cuda.cuStreamSynchronize(self.stream)


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
    version, unique, comm = ctypes.c_int(), UniqueId(), ctypes.c_void_p()
    nccl.ncclGetVersion(ctypes.byref(version))
    if rank == 0:
        nccl.ncclGetUniqueId(ctypes.byref(unique))
        with open(args.id_file + ".new", "wb") as file:
            file.write(bytes(unique))
        os.rename(args.id_file + ".new", args.id_file)
    while not os.path.exists(args.id_file):
        time.sleep(0.02)
    with open(args.id_file, "rb") as file:
        unique = UniqueId.from_buffer_copy(file.read())
    nccl.ncclCommInitRank(ctypes.byref(comm), world, unique, rank)

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
