"""Files of torch's flight recorder, as Python's pickle and torch's own analyser read them, as JSON.

usage: flight_recorder_files.py ANALYSER PREFIX_OF_PATHS [TORCHS_OWN.pkl.gz]
"""

import glob
import gzip
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


def differences(dump, own):
    """Where the form of a dump is not that of torch's own: keys, and types of values that are known."""
    found = []

    def compare(what, have, want):
        for key in sorted(set(have) | set(want)):
            if key not in want:
                found.append("%s has %s" % (what, key))
            # torch before 2.7 has no threads; the name of a thread is not recorded.
            elif key not in have and key != "thread_name" and key != "frames":
                found.append("%s lacks %s" % (what, key))
            elif key in have and None not in (have[key], want[key]) and type(have[key]) is not type(want[key]):
                found.append("%s: %s is %s, not %s" % (what, key, type(have[key]), type(want[key])))

    compare("dump", {**dump, "comm_lib_version": ""}, own)
    entry = next(entry for entry in own["entries"] if entry["profiling_name"] == "nccl:all_reduce")
    for mine in dump["entries"]:
        compare("entry", mine, entry)
    for what in ["pg_config", "pg_status"]:
        for mine in dump[what].values():
            compare(what, mine, own[what]["0"])
    return sorted(set(found))


def main():
    dumps = {}
    for path in glob.glob(PREFIX + "*"):
        with open(path, "rb") as file:
            dumps[path[len(PREFIX) :]] = pickle.load(file)
    answer = {"dumps": dumps, **analysed(os.path.dirname(PREFIX), os.path.basename(PREFIX))}
    if len(sys.argv) > 3:
        with gzip.open(sys.argv[3], "rb") as file:
            own = pickle.load(file)
        answer["differences"] = sum((differences(dump, own) for dump in dumps.values()), [])
    json.dump(answer, sys.stdout)


main()
