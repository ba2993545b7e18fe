"""A rank of a job that calls NCCL through ctypes, on the bed. At its fourth step one rank does something else than the others.

usage: differing.py BED NCCL NVML FOLDER RANK RANKS WHAT CULPRIT

WHAT: `order`: it calls an all-gather; `size`: an all-reduce of another size; `absent`: nothing. Each rank writes down what it
calls, and its own stack.
"""

import json
import os
import sys
import threading
import time
import traceback

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bed_rank

BED, NCCL, NVML, FOLDER = sys.argv[1:5]
RANK, RANKS = (int(word) for word in sys.argv[5:7])
WHAT, CULPRIT = sys.argv[7], int(sys.argv[8])
FLOAT32, SUM = 7, 0
COUNT, OTHER = 1 << 14, 1 << 13
STEPS, DIFFERS = 4, 3

truth = open(os.path.join(FOLDER, "truth%d" % RANK), "w")


def note(step, function, count, frame):
    """Writes down a call and the caller's stack, innermost first; gives the count."""
    frames = [[frame.f_code.co_name, frame.f_code.co_filename, line] for frame, line in traceback.walk_stack(frame)]
    tid = threading.get_native_id()
    truth.write(json.dumps({"step": step, "function": function, "count": count, "tid": tid, "frames": frames}) + "\n")
    truth.flush()
    return count


def load_batch():
    time.sleep(600)  # stays here


class Model:
    def __init__(self, bed, nccl, comm):
        self.bed, self.nccl, self.comm = bed, nccl, comm
        self.send, self.recv = (bed.ncclflow_bed_allocate(4 << 20) for _ in range(2))

    def forward(self, step):
        differs = (RANK, step) == (CULPRIT, DIFFERS)
        if differs and WHAT == "absent":
            load_batch()
        if differs and WHAT == "order":
            self.gather(step)
        else:
            self.reduce(step, OTHER if differs else COUNT)

    def gather(self, step):
        self.nccl.ncclAllGather(self.send, self.recv, note(step, "AllGather", COUNT, sys._getframe()), FLOAT32, self.comm, None)  # gathers here

    def reduce(self, step, count):
        self.nccl.ncclAllReduce(self.send, self.recv, note(step, "AllReduce", count, sys._getframe()), FLOAT32, SUM, self.comm, None)  # reduces here


def main():
    bed, nccl, comm = bed_rank.join(BED, NCCL, NVML, FOLDER, RANK, RANKS, ["--absent", "%d@%d" % (CULPRIT, DIFFERS)])
    print("ready", flush=True)
    while not os.path.exists(os.path.join(FOLDER, "go")):
        time.sleep(0.01)
    model = Model(bed, nccl, comm)
    for step in range(STEPS):
        model.forward(step)
        if step < DIFFERS:
            bed.ncclflow_bed_wait(None, 600)
    print("called", flush=True)
    time.sleep(600)


main()
