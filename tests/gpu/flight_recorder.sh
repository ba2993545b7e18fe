#!/usr/bin/env bash
# The flight recorder's files that ncclflow makes of a recording, and of a hang that nobody recorded, beside torch's own of the same job, read
# by torch's own analyser. One rank stays away from a collective: both name it.
#
#   tests/gpu/flight_recorder.sh NAME RANKS [NAME=VALUE …]
#
# Needs root, GPUs, torch with torch.distributed.flight_recorder, and ncclflow in $NCCLFLOW_PROGRAMS (default target/debug).
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/arguments.sh
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/debug}")
. tests/gpu/job.sh
trap kill_ranks EXIT
# The analyser calls many sends and receives mismatched, torch's own as well; then it stops reading a process group.
without_sends() {
    python3 - "$@" <<'P'
import pickle, sys
for path in sys.argv[1:]:
    dump = pickle.load(open(path, "rb"))
    dump["entries"] = [entry for entry in dump["entries"] if not entry["is_p2p"] and "coalesced" not in entry["profiling_name"]]
    pickle.dump(dump, open(path, "wb"))
P
}
start_ranks job 29575 200 history_job.py --entries "$work/entries" --leave "$work/leave" --own "$work/own_"
pids=$(pids_of job)
"$programs/ncclflow" record --files-limit 1T -p "$pids" -o "$work/out" --level api --stacks 2>"$work/record.err" &
recorder=$!
wait_for_recording "$work/record.err"
touch "$work/go"
wait_for still job
touch "$work/leave"
wait_for absent job 1
sleep 3
failed=0
"$programs/ncclflow" dump -p "$pids" --flight-recorder "$work/dumped_" >"$work/dump.txt" 2>&1
head -n 2 "$work/dump.txt"
kill_ranks
wait $recorder || { echo "ncclflow record failed"; tail -n 5 "$work/record.err"; failed=1; }
"$programs/ncclflow" export "$work/out" -f flight-recorder -o "$work/ours_" --collectives-only || failed=1
packages=$(python3 -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')
for files in own dumped ours; do
    mkdir "$work/$files"; mv "$work/${files}_"* "$work/$files/"
    [ $files != own ] || without_sends "$work/own/own_"*
    python3 tests/exports/flight_recorder_files.py "$packages" "$work/$files/${files}_" >"$work/$files.json" 2>"$work/$files.err" || { tail -n 3 "$work/$files.err"; failed=1; }
done
python3 - "$work" "$ranks" <<'P' || failed=1
import json, sys
work, ranks = sys.argv[1], int(sys.argv[2])
wrong, last = [], {}
for files in ("own", "dumped", "ours"):
    read = json.load(open(f"{work}/{files}.json"))
    collectives = read["collectives"]
    away = [one for one in collectives if one["missing"]]
    matched = sum(one["passed"] and not one["missing"] for one in collectives)
    print(f"{files}: files of {len(read['dumps'])} ranks, {matched} collectives match, {len(away)} lack ranks: {[(one['name'], one['missing']) for one in away[:3]]}; "
          f"{sum(not one['passed'] for one in collectives)} are not passed")
    last[files] = away[0] if away else None
    if not away or any(one["missing"] != [ranks - 1] for one in away):
        wrong.append(f"{files}: rank {ranks - 1} is not the one that is named: {away[:2]} {read['said'][-5:]}")
if all(last.values()) and len({one["name"].removeprefix("nccl:").strip("_") for one in (last["own"], last["ours"])}) > 1:
    wrong.append(f"torch's collective is {last['own']['name']}, ours {last['ours']['name']}")
print("\n".join(wrong))
sys.exit(bool(wrong))
P
verdict $failed
