"""A rank of a job that calls NCCL through ctypes, on the bed. One rank stays away before its fourth all-reduce."""

import ctypes
import os
import sys
import threading
import time

BED, NCCL, NVML, FOLDER = sys.argv[1:5]
RANK, RANKS, ABSENT = (int(word) for word in sys.argv[5:8])
FLOAT32, SUM = 7, 0


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def prepare():
    bed = ctypes.CDLL(BED)
    options = ["--library", NCCL, "--nvml", NVML, "--ranks", str(RANKS), "--channels", "1", "--absent", "%d@3" % ABSENT]
    if bed.ncclflow_bed_prepare("\n".join(options).encode()) != 0:
        sys.exit("the bed did not come up")
    bed.ncclflow_bed_allocate.restype = ctypes.c_void_p
    bed.ncclflow_bed_allocate.argtypes = [ctypes.c_size_t]
    bed.ncclflow_bed_set_device(RANK)
    nccl = ctypes.CDLL(NCCL)
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    nccl.ncclAllReduce.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t] + [ctypes.c_int] * 2 + [ctypes.c_void_p] * 2
    return bed, nccl


def unique_id(nccl):
    path = os.path.join(FOLDER, "id")
    made = UniqueId()
    if RANK == 0:
        assert nccl.ncclGetUniqueId(ctypes.byref(made)) == 0
        with open(path + ".new", "wb") as file:
            file.write(bytes(made))
        os.rename(path + ".new", path)
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, "rb") as file:
        return UniqueId.from_buffer_copy(file.read())


def load_batch():
    os.read(0, 1)  # stays here


class Trainer:
    def __init__(self, bed, nccl, comm):
        self.bed, self.nccl, self.comm = bed, nccl, comm
        self.buffers = [bed.ncclflow_bed_allocate(4 << 20) for _ in range(2)]

    def step(self):
        send, recv = self.buffers
        assert self.nccl.ncclAllReduce(send, recv, 1 << 18, FLOAT32, SUM, self.comm, None) == 0
        self.synchronize()

    def synchronize(self):
        self.bed.ncclflow_bed_wait(None, 600)  # waits here


def main():
    bed, nccl = prepare()
    comm = ctypes.c_void_p()
    assert nccl.ncclCommInitRank(ctypes.byref(comm), RANKS, unique_id(nccl), RANK) == 0
    bed.ncclflow_bed_register(comm)
    threading.Thread(target=lambda: time.sleep(600), daemon=True).start()
    trainer = Trainer(bed, nccl, comm)
    for number in range(5):
        if (RANK, number) == (ABSENT, 3):
            load_batch()
        trainer.step()


main()
