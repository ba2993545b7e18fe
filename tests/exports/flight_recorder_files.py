"""Files of torch's flight recorder, as Python's pickle and torch's own analyser read them, as JSON.

usage: flight_recorder_files.py ANALYSER PREFIX_OF_PATHS
"""

import glob
import importlib
import io
import json
import logging
import os
import pickle
import sys

ANALYSER, PREFIX = sys.argv[1:3]
sys.path.insert(0, ANALYSER)


def analysed(folder, prefix):
    """What the analyser says, line by line, and its collectives."""
    trace = importlib.import_module("torch.distributed.flight_recorder.fr_trace")
    builder = importlib.import_module("torch.distributed.flight_recorder.components.builder")
    utils = importlib.import_module("torch.distributed.flight_recorder.components.utils")
    # The analyser prints tables of sends and receives with a package that it may lack.
    utils.tabulate = lambda table, headers=None: str(table)
    said = io.StringIO()
    logging.getLogger("Flight Recorder").addHandler(logging.StreamHandler(said))
    built = []
    build = builder.build_db

    def kept(*arguments):
        built.append(build(*arguments))
        return built[-1]

    trace.build_db = kept
    trace.main([folder, "-p", prefix])
    collectives = [
        {
            "seq": one.collective_seq_id,
            "name": one.collective_name,
            "passed": one.pass_check,
            "missing": sorted(one.missing_ranks or []),
            "mismatches": {
                str(rank): str(other.type_of_mismatch) for rank, other in (one.mismatch_collectives or {}).items()
            },
            "frames": one.collective_frames,
        }
        for one in built[0].collectives
    ]
    return {"said": said.getvalue().splitlines(), "collectives": collectives}


def main():
    dumps = {}
    for path in glob.glob(PREFIX + "*"):
        with open(path, "rb") as file:
            dumps[path[len(PREFIX) :]] = pickle.load(file)
    answer = {"dumps": dumps, **analysed(os.path.dirname(PREFIX), os.path.basename(PREFIX))}
    json.dump(answer, sys.stdout)


main()
