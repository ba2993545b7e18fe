# shellcheck shell=bash
# For the scripts beside it, which source it: a job of RANKS processes on this host's GPUs. They set `name`, `ranks` and
# `environment` (NAME=VALUE …), and stand in the repository's root. With SHARE_GPU=1 each rank is a host of its own to NCCL, which then
# lets several ranks use one GPU and connects them over sockets (NCCL refuses two ranks of one host on a GPU).

work=$(mktemp -d "/tmp/ncclflow-gpu-$name.XXXX")
job_processes=()

# MODE PORT SECONDS PROGRAM [OPTION …]: starts a Python program of this folder on all ranks, and waits until each says `ready PID`.
# They begin when $work/go is there. After SECONDS they are ended. Their output: $work/MODE.RANK.out
start_ranks() {
    local mode=$1 port=$2 seconds=$3 program=$4 rank
    shift 4
    rm -f "$work/go"
    for rank in $(seq 0 $((ranks - 1))); do
        local host=()
        [ -n "${SHARE_GPU:-}" ] && host=("NCCL_HOSTID=rank$rank")
        env "${host[@]}" RANK="$rank" WORLD_SIZE="$ranks" MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" "${environment[@]}" \
            timeout -k 5 "$seconds" python3 -u "tests/gpu/$program" --wait-file "$work/go" "$@" >"$work/$mode.$rank.out" 2>&1 &
        job_processes+=($!)
    done
    wait_for ready "$mode"
}

# WORD MODE [COUNT]: waits until so many ranks (all of them) have said a line that begins with it. Ends the script if they do not.
wait_for() {
    local word=$1 mode=$2 count=${3:-$ranks}
    for _ in $(seq 3000); do
        [ "$(grep -l "^$word" "$work/$mode".*.out 2>/dev/null | wc -l)" -ge "$count" ] && return
        sleep 0.1
    done
    echo "FAILED: $name: no \`$word\` from $count ranks"
    tail -n 5 "$work/$mode".*.out
    exit 1
}

# FILE: waits until the recording whose messages go there has begun.
wait_for_recording() {
    for _ in $(seq 300); do grep -qs '^recording to' "$1" && break; sleep 0.1; done
}

# MODE: their process ids, as `ncclflow -p` takes them.
pids_of() { cat "$work/$1".*.out | awk '/^ready/ {printf "%s%s", sep, $2; sep = ","}'; }

# WORD MODE: what each rank said after that word.
said() { sed -n "s/^$1 //p" "$work/$2".*.out; }

kill_ranks() {
    kill "${job_processes[@]}" 2>/dev/null
    wait "${job_processes[@]}" 2>/dev/null
    job_processes=()
}

# STATUS: with KEEP=FOLDER the files of the run go there.
verdict() {
    [ -n "${KEEP:-}" ] && tar czf "$KEEP/$name.tgz" -C "$work" .
    if [ "$1" = 0 ]; then echo "PASSED: $name"; else echo "FAILED: $name"; fi
    exit "$1"
}
