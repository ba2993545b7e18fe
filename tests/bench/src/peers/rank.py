"""A rank of a job of Python programs on the bed, that ends in a hang which `cargo xtask bench peers` asks about.

    rank.py BED NCCL NVML FOLDER RANK RANKS KIND CULPRIT [OPTION OF THE BED ...]
"""

import ctypes
import os
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 2, "..", "e2e", "tests", "python"))
import bed_rank

BED, NCCL, NVML, FOLDER = sys.argv[1:5]
RANK, RANKS = (int(word) for word in sys.argv[5:7])
KIND, CULPRIT = sys.argv[7], int(sys.argv[8])
IS_CULPRIT = RANK == CULPRIT
FLOAT32, SUM = 7, 0
ELEMENTS = 1 << 18
# Steps that all ranks make before.
WHOLE = 3


class Group:
    """A communicator, as a process group has it."""

    def __init__(self, bed, nccl, comm):
        self.bed, self.nccl, self.comm = bed, nccl, comm
        self.buffers = [bed.ncclflow_bed_allocate(4 * ELEMENTS) for _ in range(2)]

    def all_reduce(self, elements=ELEMENTS):
        assert self.nccl.ncclAllReduce(*self.buffers, elements, FLOAT32, SUM, self.comm, None) == 0
        self.synchronize()

    def barrier(self):
        self.all_reduce(elements=1)

    def synchronize(self):
        self.bed.ncclflow_bed_wait(None, 600)

    def new_group(self):
        part = ctypes.c_void_p()
        return self.nccl.ncclCommSplit(self.comm, 0, RANK, ctypes.byref(part), None)


class Loader:
    """A data loader with a lock that it has taken already."""

    def __init__(self):
        self.lock = threading.Lock()

    def load_batch(self):
        self.lock.acquire()


def evaluate():
    time.sleep(600)


def pair(bed, nccl):
    """The communicator of ranks 0 and 1, or of 2 and 3."""
    folder = os.path.join(FOLDER, "pair%d" % (RANK // 2))
    os.makedirs(folder, exist_ok=True)
    comm = ctypes.c_void_p()
    unique_id = bed_rank.unique_id(nccl, folder, RANK % 2)
    assert nccl.ncclCommInitRank(ctypes.byref(comm), 2, unique_id, RANK % 2) == 0
    bed.ncclflow_bed_register(comm)
    return Group(bed, nccl, comm)


def train(world, tp):
    loader = Loader()
    for step in range(1 << 30):
        if step >= WHOLE and IS_CULPRIT:
            if KIND == "lock":
                loader.lock.acquire()
            if KIND == "call-skipped":
                world.all_reduce()
            if KIND == "barrier":
                world.barrier()
                evaluate()
        if KIND == "lock":
            loader.load_batch()
            loader.lock.release()
        if step == WHOLE and KIND == "new-group":
            if IS_CULPRIT:
                loader.lock.acquire()
                loader.load_batch()
            world.new_group()
        if tp:
            tp.all_reduce()
        world.all_reduce()


def main():
    bed, nccl, comm = bed_rank.join(BED, NCCL, NVML, FOLDER, RANK, RANKS, sys.argv[9:])
    nccl.ncclCommSplit.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int] + [ctypes.c_void_p] * 2
    threading.Thread(target=lambda: time.sleep(600), daemon=True).start()
    world = Group(bed, nccl, comm)
    tp = pair(bed, nccl) if KIND == "call-skipped" else None
    open(os.path.join(FOLDER, "ready%d" % RANK), "w").close()
    train(world, tp)


main()
