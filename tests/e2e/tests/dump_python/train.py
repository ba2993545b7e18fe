"""A rank of a job that calls NCCL through ctypes, on the bed. One rank stays away before its fourth all-reduce. More arguments are
options of the bed."""

import os
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bed_rank

BED, NCCL, NVML, FOLDER = sys.argv[1:5]
RANK, RANKS, ABSENT = (int(word) for word in sys.argv[5:8])
FLOAT32, SUM = 7, 0


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
    bed, nccl, comm = bed_rank.join(BED, NCCL, NVML, FOLDER, RANK, RANKS, ["--absent", "%d@3" % ABSENT, *sys.argv[8:]])
    threading.Thread(target=lambda: time.sleep(600), daemon=True).start()
    trainer = Trainer(bed, nccl, comm)
    for number in range(5):
        if (RANK, number) == (ABSENT, 3):
            load_batch()
        trainer.step()


main()
