"""What the tables and the shipped queries must give, computed from JSON lines in plain Python."""

from collections import Counter, defaultdict
from statistics import median

WAITS = [
    "gpu_ready", "peer_buffer", "gpu_ready_or_peer_buffer", "network", "flush", "gpu_consume", "flush_or_gpu_consume",
]


def link_seconds(messages):
    """Rows of `link_1s` by their key."""
    rows = defaultdict(Counter)
    for m in messages:
        end = m.get("t_end_ns")
        second = ((end if end is not None else m["ts_ns"]) + (m["clock_offset_ns"] or 0)) // 10**9
        of = "op" if end is None else "end"
        keys = ["job", "host", "communicator", "rank", "peer", "channel", "op", "transport"]
        row = rows[(*(m[key] for key in keys), second, of)]
        row["messages"] += 1
        row["messages_measured"] += end is not None
        row["bytes_" + m["bytes_kind"]] += m["bytes"]
        if m.get("bytes_measured") is not None:
            row["bytes_measured"] += m["bytes_measured"]
            row["sizes_measured"] += 1
        begin = m.get("t_start_ns" if m["op"] == "SEND" else "t_posted_ns")
        begin = m.get("t_slot_free_ns") if begin is None else begin
        if None not in (begin, end):
            row["busy_sum_ns"] += max(end - begin, 0)
            row["busy_max_ns"] = max(row["busy_max_ns"], end - begin)
            row["busy_messages"] += 1
        for wait in WAITS:
            ns = m.get(f"wait_{wait}_ns")
            if ns is not None:
                row[f"wait_{wait}_ns"] += ns
                row[f"waited_{wait}"] += 1
    return rows


def links(ops, messages):
    sums = defaultdict(Counter)
    for m in messages:
        row = sums[tuple(m[key] for key in ["job", "communicator", "rank", "op", "peer", "transport", "host"])]
        row["messages"] += 1
        row["measured"] += m.get("t_end_ns") is not None
        row["bytes_exact"] += m["bytes"] if m["bytes_kind"] == "exact" else 0
        row["bytes_capacity"] += m["bytes"] if m["bytes_kind"] == "capacity" else 0
        row["bytes_measured"] += m.get("bytes_measured") or 0
        begin = m.get("t_start_ns" if m["op"] == "SEND" else "t_posted_ns")
        begin = m.get("t_slot_free_ns") if begin is None else begin
        if begin is not None and m.get("t_end_ns") is not None:
            row["busy"] += m["t_end_ns"] - begin
        for wait in WAITS:
            row[wait] += m.get(f"wait_{wait}_ns") or 0
    return [
        (
            *key, r["messages"], r["measured"], r["bytes_exact"], r["bytes_capacity"], r["bytes_measured"], r["busy"] / 1e6,
            (r["gpu_ready"] + r["gpu_consume"]) / 1e6, r["peer_buffer"] / 1e6, r["gpu_ready_or_peer_buffer"] / 1e6,
            r["network"] / 1e6, r["flush"] / 1e6, r["flush_or_gpu_consume"] / 1e6,
        )
        for key, r in sums.items()
    ]


def delays(ops, messages):
    waits = defaultdict(list)
    for m in messages:
        if m["op"] == "RECV" and m.get("wait_network_ns") is not None:
            waits[m["job"], m["communicator"], m["rank"], m["peer"]].append(m["wait_network_ns"])
    cells = {key: (len(ns), sum(ns) / len(ns) / 1000, max(ns) / 1000) for key, ns in waits.items()}
    worst = {}
    for key in sorted(cells, key=lambda key: (-cells[key][1], key[3])):
        worst.setdefault(key[:3], key[3])
    return [(*key, *cell, int(worst[key[:3]] == key[3])) for key, cell in cells.items()]


def collectives(ops):
    return [o for o in ops if o["seq"] % 2 == 0 and o["coll"] not in (None, "Send", "Recv") and not o.get("seqLocal")]


def late_ranks(ops, messages):
    launches = defaultdict(dict)
    for o in collectives(ops):
        at = launches[o["job"], o["communicator"], o["seq"]]
        place = o["rank"], o["host"]
        if o["wall_ns"] is not None:
            at[place] = min(at.get(place, o["wall_ns"]), o["wall_ns"])
    hosts, behind, last = defaultdict(set), defaultdict(list), Counter()
    for (job, comm, _), at in launches.items():
        hosts[job, comm].update(host for _, host in at)
        for (rank, host), ns in at.items() if len(at) > 1 else ():
            behind[job, comm, rank, host].append(ns - min(at.values()))
            last[job, comm, rank, host] += ns == max(at.values())
    return [
        (*key, len(ns), last[key], sum(ns) / len(ns) / 1000, max(ns) / 1000, len(hosts[key[:2]]))
        for key, ns in behind.items()
    ]


def first_difference(ops, messages):
    keys = ["coll", "dtype", "redOp", "root", "count"]
    seen = defaultdict(lambda: defaultdict(dict))
    for o in collectives(ops):
        seen[o["job"], o["communicator"]][o["seq"]][o["rank"]] = (o["host"], tuple(o[key] for key in keys))
    found = []
    for (job, comm), by_seq in seen.items():
        spans = {}
        for seq in sorted(by_seq):
            for rank in by_seq[seq]:
                spans[rank] = (spans.get(rank, (seq,))[0], seq)
        for seq in sorted(by_seq):
            ranks = by_seq[seq]
            kinds = Counter(what for _, what in ranks.values())
            lacking = [r for r, (first, last) in spans.items() if first < seq < last and r not in ranks]
            if len(kinds) < 2 and not lacking:
                continue
            name = "call" if len(kinds) > 1 else "missing"
            found += [(job, comm, seq, name, r, host, *what, kinds[what]) for r, (host, what) in ranks.items()]
            found += [(job, comm, seq, "missing", r, None, *[None] * 5, len(lacking)) for r in lacking]
            break
    return found


def iterations(ops, messages):
    processes = defaultdict(lambda: defaultdict(dict))
    for o in collectives(ops):
        kind = o["communicator"], o["rank"], o["coll"], o["dtype"], o["count"]
        at = processes[o["job"], o["host"], o["pid"]][kind]
        at[o["seq"]] = min(at.get(o["seq"], o["ts_ns"]), o["ts_ns"])
    found = []
    for process, kinds in processes.items():
        kinds = {kind: sorted(at.values()) for kind, at in kinds.items() if len(at) >= 3}
        if not kinds:
            continue
        alike = Counter(len(at) for at in kinds.values())
        kind, at = min(kinds.items(), key=lambda item: (-alike[len(item[1])], len(item[1]), item[1][0], str(item[0])))
        gaps = [after - before for before, after in zip(at, at[1:])]
        found.append((*process, *kind, len(gaps), sum(gaps) / len(gaps) / 1e6, median(gaps) / 1e6, max(gaps) / 1e6))
    return found
