#!/usr/bin/env bash
# What the GPUs' driver says, in a recording: bytes over NVLink against the bytes that NCCL planned (within 2 %), and processes, power and clocks against
# nvidia-smi.
#
#   tests/gpu/gpus.sh NAME RANKS [NAME=VALUE …]
#
# Large all-reduces of a ring with protocol SIMPLE: LL and LL128 send flags beside the data. Needs root, GPUs with NVLink, torch, nvidia-smi, and
# ncclflow in $NCCLFLOW_PROGRAMS (default target/debug).
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/arguments.sh
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/debug}")
. tests/gpu/job.sh
# Large slots: few messages, so that the files of lines do not reach their limit.
environment+=(NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_BUFFSIZE=67108864)
# 1 GiB an all-reduce, some milliseconds. workload.py would copy and check each result, which takes seconds.
start_ranks job 29551 200 flood.py --elements 268435456 --burst 8 --seconds "${SECONDS_BUSY:-15}"
"$programs/ncclflow" record --files-limit 1T -p "$(pids_of job)" -o "$work/out" --strict 2>"$work/record.err" &
recorder=$!
wait_for_recording "$work/record.err"
touch "$work/go"
sleep 4
nvidia-smi --query-gpu=index,uuid,power.draw,temperature.gpu,clocks.sm --format=csv,noheader,nounits >"$work/smi.csv"
wait $recorder; recorded=$?
wait_for 'done' job

failed=0
[ $recorded = 0 ] || { echo "ncclflow ended with $recorded"; tail -n 5 "$work/record.err"; failed=1; }
python3 - "$work" "$ranks" "$(pids_of job)" <<'P' || failed=1
import glob, json, sys
work, ranks, pids = sys.argv[1], int(sys.argv[2]), [int(pid) for pid in sys.argv[3].split(",")]
rows = [json.loads(line) for line in open(f"{work}/out/gpus.jsonl")]
wrong = []
ops = []
for path in sorted(glob.glob(f"{work}/out/*/proxy_flow_rank*.jsonl")):
    for line in open(path):
        op = json.loads(line)
        if op["rank"] == 0:
            ops.append((op["ts_ns"], op["seq"], op["count"] * 4 if op.get("count") else None))
launches = {seq: (ts, size) for ts, seq, size in ops}
times = sorted(ts for ts, _ in launches.values())
of_job = [row for row in rows if any(p["pid"] in pids for p in row.get("processes") or [])]
# The host can have more.
gpus = sorted({row["gpu"] for row in of_job})
if len(gpus) != ranks:
    wrong.append(f"{len(gpus)} GPUs have a process of the job, which has {ranks} ranks")
for gpu in gpus:
    own = [row for row in of_job if row["gpu"] == gpu]
    # Whole seconds in which the job did nothing else.
    busy = [row for row in own if row.get("period_ns") and row.get("sm_percent") and row["sm_percent"] >= 95 and times[0] + 1e9 < row["ts_ns"] - row["period_ns"]
            and row["ts_ns"] < times[-1] - 5e8][1:-1]
    if len(busy) < 4:
        wrong.append(f"GPU {gpu}: {len(busy)} busy seconds of {len(own)} rows")
        continue
    sent, received = (sum(row[key] for row in busy) for key in ("nvlink_sent", "nvlink_received"))
    seconds = sum(row["period_ns"] for row in busy) / 1e9
    print(f"GPU {gpu}: NVLink {sent / seconds / 1e9:.2f} GB/s sent, {received / seconds / 1e9:.2f} received over {seconds:.1f} s; "
          f"{busy[0]['power_mw'] / 1e3:.0f} W, {busy[0]['temperature']} C, {busy[0]['sm_clock_mhz']} MHz")
    # Ops that end in these seconds: the steady rate between the first and the last launch in them. Launches are ahead of the GPU by a constant number.
    begin, end = busy[0]["ts_ns"] - busy[0]["period_ns"], busy[-1]["ts_ns"]
    inside = [ts for ts in times if begin <= ts <= end]
    rate = (len(inside) - 1) / (inside[-1] - inside[0]) * 1e9
    # A ring sends each byte 2 (n - 1) / n times.
    planned = rate * (1 << 30) * 2 * (ranks - 1) / ranks
    for name, bytes_ in (("sent", sent), ("received", received)):
        ratio = bytes_ / seconds / planned
        print(f"GPU {gpu}: {name} {ratio:.4f} of the {planned / 1e9:.2f} GB/s that were planned")
        if not 0.98 <= ratio <= 1.02:
            wrong.append(f"GPU {gpu}: {name} {ratio:.4f} of what was planned")
    for line in open(f"{work}/smi.csv"):
        index, uuid, power, temperature, clock = (part.strip() for part in line.split(","))
        if int(index) == gpu:
            if busy[0]["gpu_uuid"] != uuid:
                wrong.append(f"GPU {gpu}: {busy[0]['gpu_uuid']}, nvidia-smi says {uuid}")
            if abs(busy[0]["temperature"] - int(temperature)) > 8 or not 0.6 < busy[0]["power_mw"] / 1e3 / float(power) < 1.6:
                wrong.append(f"GPU {gpu}: {busy[0]['power_mw']} mW, {busy[0]['temperature']} C; nvidia-smi says {power} W, {temperature} C")
if not rows:
    wrong.append("no rows")
print(*wrong, sep="\n")
sys.exit(bool(wrong))
P
verdict $failed
