"""A rank of a job on the bed whose iterations are two collectives. Rank 1 comes late to the second of them, from a line that it says.

usage: late.py BED NCCL NVML FOLDER RANK RANKS
"""

import os
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bed_rank

BED, NCCL, NVML, FOLDER = sys.argv[1:5]
RANK, RANKS = (int(word) for word in sys.argv[5:7])
FLOAT32, SUM = 7, 0


def all_reduce(nccl, comm, buffers):
    assert nccl.ncclAllReduce(*buffers, 256, FLOAT32, SUM, comm, None) == 0


def all_gather(nccl, comm, buffers):
    assert nccl.ncclAllGather(*buffers, 256, FLOAT32, comm, None) == 0


def step(bed, nccl, comm, buffers):
    time.sleep(0.03)
    all_reduce(nccl, comm, buffers)
    time.sleep(0.02 if RANK == 1 else 0.002)
    all_gather(nccl, comm, buffers)
    assert bed.ncclflow_bed_wait(None, 60) == 0


def main():
    bed, nccl, comm = bed_rank.join(BED, NCCL, NVML, FOLDER, RANK, RANKS)
    buffers = [bed.ncclflow_bed_allocate(1 << 20) for _ in range(2)]
    # Calls are in the first line of a function's body.
    print("ready", all_gather.__code__.co_firstlineno + 1, flush=True)
    while True:
        step(bed, nccl, comm, buffers)


main()
