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
        keys = ["job", "host", "communicator", "rank", "peer", "channel", "op", "transport", "nic"]
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


def pairs(ops, messages):
    calls, moved = defaultdict(dict), defaultdict(list)
    for o in ops:
        if o["pattern"] in ("SEND", "RECV"):
            key = tuple(o[key] for key in ["job", "communicator", "rank", "pattern", "root"])
            calls[*key, o.get("collApi") or o["coll"]][o["seq"]] = o.get("bytes")
    for m in messages:
        if m["pattern"] in ("SEND", "RECV") and m.get("bytes_measured") is not None:
            key = tuple(m[key] for key in ["job", "communicator", "rank", "op", "peer", "seq"])
            moved[key].append(m["bytes_measured"])
    rows = []
    for key, of in calls.items():
        planned = [bytes for bytes in of.values() if bytes is not None]
        measured = [bytes for seq in of for bytes in moved[*key[:5], seq]]
        rows.append((*key, len(of), sum(planned) if planned else None, sum(measured) if measured else None, len(measured)))
    return rows


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


def launch(ops):
    """Rows of the view `launch`."""
    first = {}
    for o in ops:
        if o["seq"] % 2 or o["coll"] in (None, "Send", "Recv"):
            continue
        key = tuple(o[key] for key in ["job", "host", "pid", "communicator", "rank", "seq", "coll", "dtype", "count"])
        known = first.get(key)
        first[key] = o if known is None or o["ts_ns"] < known["ts_ns"] else known
    together = defaultdict(list)
    for key, o in first.items():
        if o["wall_ns"] is not None and not o.get("seqLocal"):
            together[key[0], key[3], key[5]].append((o["wall_ns"], key[4], key[1]))
    for times in together.values():
        times.sort()
    rows = []
    for key, o in first.items():
        times = together[key[0], key[3], key[5]]
        at = o["wall_ns"], key[4], key[1]
        compared = [None] * 3
        if at in times:
            is_last = at == times[-1] and len(times) > 1
            compared = [len(times), at[0] - times[0][0], at[0] - times[-2][0] if is_last else 0]
        rows.append((*key, o["ts_ns"], o["wall_ns"], *compared))
    return rows


def iteration(ops):
    """Rows of the view `iteration`."""
    processes = defaultdict(list)
    for row in launch(ops):
        processes[row[:3]].append(row)
    found = []
    for process, launches in processes.items():
        # A collective: communicator, rank, function, type, count.
        kind_of = lambda row: (row[3], row[4], *row[6:9])
        times = defaultdict(list)
        for row in launches:
            times[kind_of(row)].append(row[9])
        times = {kind: at for kind, at in times.items() if len(at) >= 3}
        if not times:
            continue
        alike = Counter(len(at) for at in times.values())
        begin = min(times, key=lambda kind: (-alike[len(times[kind])], len(times[kind]), min(times[kind]), str(kind)))
        launches.sort(key=lambda row: (row[9], kind_of(row) != begin, row[3:6]))
        firsts = first_of_iterations([row for row in launches if kind_of(row) == begin])
        parts = []
        for row in launches:
            if row in firsts:
                parts.append([])
            if parts:
                parts[-1].append(row)
        for number, (part, after) in enumerate(zip(parts, parts[1:]), 1):
            compared = [row for row in part if row[11] is not None and row[11] > 1]
            late = [row[12] for row in compared]
            found.append((
                *process, *begin, number, part[0][9], part[0][10], after[0][9] - part[0][9], len(compared),
                sum(row[13] > 0 for row in compared), sum(late) / len(late) if late else None, max(late, default=None),
                max((row[13] for row in compared), default=None),
            ))
    return found


def first_of_iterations(launches):
    """Of a collective that comes once or several times in an iteration, the launches that begin one."""
    pauses = [0, *(after[9] - before[9] for before, after in zip(launches, launches[1:]))]
    usual = sum(pauses) / max(len(pauses) - 1, 1)
    long = [at for at, pause in enumerate(pauses) if pause > 2 * usual]
    runs = Counter(after - before for before, after in zip(long, long[1:]))
    most = min(runs, key=lambda length: (-runs[length], length), default=0)
    if not 2 <= most <= 64 or runs.total() < 8 or runs[most] * 2 <= runs.total():
        return set(launches)
    places = Counter((at + 1) % most for at in long)
    place = min(places, key=lambda place: (-places[place], place))
    return {row for at, row in enumerate(launches, 1) if at % most == place}


def iterations(ops, messages):
    processes = defaultdict(list)
    for row in iteration(ops):
        processes[row[:8]].append(row)
    found = []
    for key, rows in processes.items():
        times = [row[11] for row in rows]
        compared = sum(row[12] for row in rows)
        late = sum(row[14] * row[12] for row in rows if row[12]) / compared / 1e6 if compared else None
        found.append((*key, len(times), sum(times) / len(times) / 1e6, median(times) / 1e6, max(times) / 1e6, late))
    return found


def waited_for(ops, messages):
    alone, data = defaultdict(list), defaultdict(list)
    for row in launch(ops):
        if row[11] is not None and row[11] > 1:
            alone[row[0], row[3], row[4]].append(row[13])
    for m in messages:
        if m["op"] == "RECV" and m.get("wait_network_ns") is not None:
            data[m["job"], m["communicator"], m["peer"]].append(m["wait_network_ns"])
    found = []
    for key in sorted(set(alone) | set(data)):
        late, waits = alone.get(key), data.get(key)
        launched = (len(late), sum(ns > 0 for ns in late), sum(late) / len(late) / 1000) if late else (None, None, None)
        found.append((*key, *launched, *((len(waits), sum(waits) / len(waits) / 1000) if waits else (None, None))))
    return found
