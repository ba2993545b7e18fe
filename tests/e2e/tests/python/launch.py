"""A rank of a job that calls NCCL through ctypes, on the bed: alone and in groups. Writes down its own stack at each call, and
at the call that launched it.

usage: launch.py BED NCCL NVML FOLDER RANK RANKS
"""

import json
import os
import sys
import time
import traceback

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bed_rank

BED, NCCL, NVML, FOLDER = sys.argv[1:5]
RANK, RANKS = (int(word) for word in sys.argv[5:7])
FLOAT32, SUM, ROUNDS = 7, 0, 30
truth = {}
count = 0


def stack(frame):
    """Outermost first."""
    code = [(frame.f_code, line) for frame, line in traceback.walk_stack(frame)]
    return [[getattr(code, "co_qualname", code.co_name), code.co_filename, line] for code, line in reversed(code)]


def noted(frame):
    """Gives the next number of elements, which says which op it is."""
    global count
    count += 1
    truth[count] = {"call": stack(frame), "launch": None}
    return count


class Job:
    def __init__(self, bed, nccl, comm):
        self.bed, self.nccl, self.comm = bed, nccl, comm
        self.buffers = [bed.ncclflow_bed_allocate(1 << 20) for _ in range(2)]

    def reduce(self):
        send, recv = self.buffers
        assert self.nccl.ncclAllReduce(send, recv, noted(sys._getframe()), FLOAT32, SUM, self.comm, None) == 0

    def alone(self):
        self.reduce()
        truth[count]["launch"] = truth[count]["call"]

    def group(self):
        assert self.nccl.ncclGroupStart() == 0
        self.reduce()
        self.reduce()
        self.launch([count - 1, count])

    def note_launch(self, counts, frame):
        for number in counts:
            truth[number]["launch"] = stack(frame)
        return self.nccl.ncclGroupEnd

    def launch(self, counts):
        assert self.note_launch(counts, sys._getframe())() == 0


def main():
    bed, nccl, comm = bed_rank.join(BED, NCCL, NVML, FOLDER, RANK, RANKS)
    job = Job(bed, nccl, comm)
    print("ready", flush=True)
    while not os.path.exists(os.path.join(FOLDER, "go")):
        time.sleep(0.01)
    for _ in range(ROUNDS):
        job.alone()
        job.group()
        assert bed.ncclflow_bed_wait(None, 60) == 0
    with open(os.path.join(FOLDER, "truth%d" % RANK), "w") as file:
        json.dump(truth, file)
    print("done", flush=True)
    # Without the end of the program: the other rank may still be at it, and its memory is needed until all stacks are named.
    sys.stdin.read()


main()
