"""A rank of a job that calls NCCL through ctypes, on the bed: alone and in groups. Writes down its own stack at each call, and
at the call that launched it.

usage: launch.py BED NCCL NVML FOLDER RANK RANKS
"""

import ctypes
import json
import os
import sys
import time
import traceback

BED, NCCL, NVML, FOLDER = sys.argv[1:5]
RANK, RANKS = (int(word) for word in sys.argv[5:7])
FLOAT32, SUM, ROUNDS = 7, 0, 30
truth = {}
count = 0


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def prepare():
    bed = ctypes.CDLL(BED)
    options = ["--library", NCCL, "--nvml", NVML, "--ranks", str(RANKS), "--channels", "1"]
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
    bed, nccl = prepare()
    comm = ctypes.c_void_p()
    assert nccl.ncclCommInitRank(ctypes.byref(comm), RANKS, unique_id(nccl), RANK) == 0
    bed.ncclflow_bed_register(comm)
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
    # Its memory is needed until all stacks are named.
    time.sleep(1)
    print("done", flush=True)
    # Without the end of the program: the other rank may still be at it.
    sys.stdin.read()


main()
