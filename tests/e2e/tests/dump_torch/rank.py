"""A rank of a job on the bed that has torch's stand-in loaded, too, and does what it is told (torch-double/job.py).

usage: rank.py BED NCCL NVML FOLDER RANK RANKS STAND-IN
"""

import os
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "python"), os.path.join(HERE, "..", "..", "..", "torch-double")]
import bed_rank

BED, NCCL, NVML, FOLDER, RANK, RANKS, DOUBLE = sys.argv[1:8]
kept = bed_rank.join(BED, NCCL, NVML, FOLDER, int(RANK), int(RANKS))
# The stand-in is what its module takes from the command line.
sys.argv[1:] = [DOUBLE]
import job

job.main()
