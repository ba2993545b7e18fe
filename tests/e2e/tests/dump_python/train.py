"""A rank of a job that calls NCCL through ctypes, on the bed. One rank stays away before its fourth all-reduce. More arguments are
options of the bed. With IN_THREAD in the environment another thread than the first does all this, and on the rank that stays away
a third one spins."""

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


def spin():
    while True:
        pass


def serve():
    if RANK == ABSENT:
        threading.Thread(target=spin, daemon=True).start()
    worker = threading.Thread(target=main)
    worker.start()
    worker.join()  # waits for it


serve() if "IN_THREAD" in os.environ else main()
