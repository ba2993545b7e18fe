#!/usr/bin/env python3
"""Compares traces of `ncclflow export -f chakra` with the JSON lines of the same recordings, and runs them.

chakra_traces.py FOLDER LINES… [--bytes N]

The traces are read by MLCommons' own `chakra_jsonizer` (PyPI: mlc-chakra). Nodes, sizes, groups and peers must be those of
the lines; then all ranks' nodes are run as a simulator does it: a node begins when those that it depends on are over, a
collective is over when all ranks of its group have begun it, a send when it is received. All must come to their end.
`--bytes`: what the program called every collective and every send with. Says what differs, and exits with 1.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
from collections import defaultdict, deque

from sessions import Lines, fail, is_p2p, same

TYPES = {"ALL_REDUCE": 0, "REDUCE": 1, "ALL_GATHER": 2, "GATHER": 3, "SCATTER": 4, "BROADCAST": 5, "ALL_TO_ALL": 6, "REDUCE_SCATTER": 7}
NAMES = {0: "AllReduce", 1: "Reduce", 2: "AllGather", 3: "Gather", 4: "Scatter", 5: "Broadcast", 6: "AlltoAll", 7: "ReduceScatter"}


def jsonize(path):
    with tempfile.NamedTemporaryFile("r") as out:
        command = ["--input_filename", path, "--output_filename", out.name]
        subprocess.run([sys.executable, "-m", "chakra.src.jsonizer.jsonizer", *command], check=True)
        text = out.read()
    decoder, at, found = json.JSONDecoder(), 0, []
    while at < len(text):
        one, at = decoder.raw_decode(text, at)
        found.append(one)
    metadata, nodes = found[0], found[1:]
    same("schema", metadata["version"], "1.0.0")
    for node in nodes:
        values = {}
        for one in node.pop("attr", []):
            (key,) = [key for key in one if key.endswith("Val")]
            # JSON has 64 bit numbers as texts.
            values[one["name"]] = int(one[key]) if key in ("int64Val", "uint64Val") else one[key]
        node.update(values, id=int(node["id"]), deps=[int(of) for of in node.get("dataDeps", [])])
    return nodes


# What ASTRA-sim's workload layer (518bd51, March 2026) runs; any other type ends the simulation.
RUNS = {TYPES[name] for name in ("ALL_REDUCE", "ALL_GATHER", "BROADCAST", "ALL_TO_ALL", "REDUCE_SCATTER")}
# Beyond the numbers of communicators: messages that collectives are made of.
COLLECTIVE_TAGS = 1 << 24


def comm_size(function, size, n_ranks):
    """As ASTRA-sim counts it: what a rank puts in."""
    return size * n_ranks if function in ("ReduceScatter", "AlltoAll") else size


def edges(function, own, n_ranks, root):
    """Sends and receives of a rank in a collective that no simulator runs: kind, peer."""
    others = [r for r in range(n_ranks) if r != root]
    if function == "Gather":
        return [("COMM_RECV_NODE", r) for r in others] if own == root else [("COMM_SEND_NODE", root)]
    if function == "Scatter":
        return [("COMM_SEND_NODE", r) for r in others] if own == root else [("COMM_RECV_NODE", root)]
    chain = [(root + 1 + at) % n_ranks for at in range(n_ranks)]
    at = chain.index(own)
    before = [("COMM_RECV_NODE", chain[at - 1])] if at > 0 else []
    return before + ([("COMM_SEND_NODE", chain[at + 1])] if at + 1 < n_ranks else [])


def feed(rank, node, groups):
    """What ASTRA-sim's feeder and workload layer ask of a node: without it they throw, or a network layer asserts."""
    kind = node["type"]
    if kind not in ("METADATA_NODE", "COMP_NODE", "COMM_COLL_NODE", "COMM_SEND_NODE", "COMM_RECV_NODE"):
        fail(f"rank {rank}: a node of type {kind}")
    if not kind.startswith("COMM_"):
        return
    same("is_cpu_op of a node of communication", node["is_cpu_op"], False)
    if not isinstance(node.get("comm_size"), int):
        fail(f"rank {rank}: {kind} {node['id']} has no comm_size")
    # `std::stoi` takes it.
    if rank not in groups.get(str(int(node["pg_name"])), []):
        fail(f"rank {rank} is not in the group {node['pg_name']} of its node")
    if kind == "COMM_COLL_NODE":
        if node["comm_type"] not in RUNS:
            fail(f"rank {rank}: comm_type {node['comm_type']} of {node['name']} ends the simulation")
        return
    own, peer = ("comm_src", "comm_dst") if kind == "COMM_SEND_NODE" else ("comm_dst", "comm_src")
    same("the rank that issues it", node[own], rank)
    if node[peer] == rank or not 0 <= node["comm_tag"] < 1 << 31:
        fail(f"rank {rank}: {kind} with rank {node[peer]}, tag {node['comm_tag']}")


def kind_of(rank, node):
    """The type of a node; one whose size is not known is passed over, but says what it would be."""
    if node["type"] != "METADATA_NODE":
        return node["type"]
    if "comm_type" in node:
        return "COMM_COLL_NODE"
    return "COMM_SEND_NODE" if node["comm_src"] == rank else "COMM_RECV_NODE"


def wanted_of_ops(lines):
    """(rank, communicator, kind, function, peer, seq) of each op, whatever its channels."""
    want = {}
    for o in lines.ops:
        kind = "COMM_" + (o["pattern"] if is_p2p(o) else "COLL") + "_NODE"
        function = {"SEND": "Send", "RECV": "Recv"}.get(o["pattern"], o["coll"])
        peer = o["root"] if is_p2p(o) else None
        if peer == o["rank"]:
            continue
        if function in ("Reduce", "Gather", "Scatter"):
            for part, other in edges(function, o["rank"], o["nRanks"], o["root"]):
                want[o["rank"], o["communicator"], part, function, other, o["seq"]] = (None, o["nRanks"])
            continue
        key = (o["rank"], o["communicator"], kind, function, peer, o["seq"])
        size = o.get("bytes") if is_p2p(o) else None
        if size is None and function == "AllReduce" and o["count"] is not None:
            size = o["count"] * {"float32": 4, "int8": 1, "bfloat16": 2, "float16": 2, "float64": 8, "int64": 8, "int32": 4, "uint8": 1}[o["dtype"]]
        want[key] = (size, o["nRanks"])
    return want


def wanted_of_calls(lines):
    want = defaultdict(list)
    for c in lines.calls:
        if c.get("nRanks") and c["nRanks"] > 1 and c["function"] in [*NAMES.values(), "Send", "Recv"]:
            if c["peer"] == c["rank"] and c["function"] in ("Send", "Recv"):
                continue
            peers = [c["peer"]]
            if c["function"] in ("Reduce", "Gather", "Scatter"):
                peers = [peer for _, peer in edges(c["function"], c["rank"], c["nRanks"], c["root"])]
            for peer in peers:
                want[c["rank"], c["communicator"], c["function"], peer, c["stream"], c["launched"]].append((c["bytes"], c["nRanks"]))
    return want


def run(ranks, groups):
    """Runs all nodes; gives in which order they ended, by rank."""
    waiting = {r: {n["id"]: set(n["deps"]) for n in nodes} for r, nodes in ranks.items()}
    children = {r: defaultdict(list) for r in ranks}
    by_id = {r: {n["id"]: n for n in nodes} for r, nodes in ranks.items()}
    for r, nodes in ranks.items():
        for n in nodes:
            for of in n["deps"]:
                if of not in by_id[r] or of >= n["id"]:
                    fail(f"rank {r}: node {n['id']} depends on {of}, which does not come before it")
                children[r][of].append(n["id"])
    ready = deque((r, i) for r in waiting for i in sorted(waiting[r]) if not waiting[r][i])
    ended, arrived, pairs = {r: [] for r in ranks}, defaultdict(list), defaultdict(lambda: (deque(), deque()))
    begun = defaultdict(int)

    def end(r, i):
        ended[r].append(i)
        for child in children[r][i]:
            waiting[r][child].discard(i)
            if not waiting[r][child]:
                ready.append((r, child))

    while ready:
        r, i = ready.popleft()
        node = by_id[r][i]
        if node["type"] == "METADATA_NODE":
            end(r, i)
        elif node["type"] == "COMM_COLL_NODE":
            # The nth collective of a group on one rank is the nth on each.
            group = node["pg_name"]
            here = arrived[group, begun[group, r]]
            begun[group, r] += 1
            here.append((r, i))
            kinds = {(by_id[of][at]["comm_type"], by_id[of][at].get("comm_size")) for of, at in here}
            if len(kinds) != 1:
                fail(f"group {group}: {kinds} meet")
            if sorted(of for of, _ in here) == sorted(groups[group]):
                for of, at in here:
                    end(of, at)
        else:
            pair = pairs[node["comm_src"], node["comm_dst"], node["comm_tag"]]
            sends, receives = pair
            (sends if node["type"] == "COMM_SEND_NODE" else receives).append((r, i))
            if sends and receives:
                (s, si), (d, di) = sends.popleft(), receives.popleft()
                same("bytes sent and received", by_id[s][si].get("comm_size"), by_id[d][di].get("comm_size"))
                end(s, si)
                end(d, di)
    stuck = {r: len(nodes) - len(ended[r]) for r, nodes in ranks.items() if len(nodes) != len(ended[r])}
    if stuck:
        fail(f"nodes never end, by rank: {stuck}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("lines", nargs="+")
    parser.add_argument("--bytes", type=int)
    parser.add_argument("--cut", action="store_true", help="ranks of a part need not have the same nodes")
    arguments = parser.parse_args()
    lines = Lines(arguments.lines)
    groups = json.loads((arguments.folder / "ncclflow.groups.json").read_text())
    ranks = {int(re.fullmatch(r"ncclflow\.(\d+)\.et", p.name)[1]): jsonize(p) for p in arguments.folder.glob("*.et")}
    nodes = [(r, n) for r, of in ranks.items() for n in of if n["type"] != "METADATA_NODE" or "comm_hash" in n]
    for r, of in ranks.items():
        same(f"numbers of rank {r}", [n["id"] for n in of], list(range(1, len(of) + 1)))
        for n in of:
            same("is_cpu_op", n["is_cpu_op"], False)
            feed(r, n, groups)
    # In one job of one communicator of all ranks, a rank is the job's.
    have_ops, have_calls = {}, defaultdict(list)
    by_group = {}
    for r, n in nodes:
        group = groups[n["pg_name"]]
        same("group of a communicator", by_group.setdefault(n["comm_hash"], n["pg_name"]), n["pg_name"])
        own, peer = group.index(r), None
        kind = kind_of(r, n)
        if kind == "COMM_COLL_NODE":
            same("function", NAMES[n["comm_type"]], n["name"])
        else:
            is_send = kind == "COMM_SEND_NODE"
            same("rank", n["comm_src" if is_send else "comm_dst"], r)
            peer = group.index(n["comm_dst" if is_send else "comm_src"])
            of_program = n["name"] in ("Send", "Recv")
            same("tag", n["comm_tag"], int(n["pg_name"]) + (0 if of_program else COLLECTIVE_TAGS))
        if lines.calls:
            stream = hex(n["stream"])
            have_calls[own, n["comm_hash"], n["name"], peer, stream, n.get("launched")].append((n.get("comm_size"), len(group)))
        else:
            have_ops[own, n["comm_hash"], kind, n["name"], peer, n["seq"]] = (n.get("comm_size"), len(group))
        if arguments.bytes is not None:
            same("comm_size", n.get("comm_size"), comm_size(n["name"], arguments.bytes, len(group)))
    if lines.calls:
        want = wanted_of_calls(lines)
        for key, of in want.items():
            of[:] = sorted((comm_size(key[2], size, n), n) for size, n in of)
        same("nodes of calls", {key: sorted(of) for key, of in have_calls.items()}, dict(want))
    else:
        want = wanted_of_ops(lines)
        same("nodes of ops", sorted(map(repr, have_ops)), sorted(map(repr, want)))
        for key, (size, n_ranks) in want.items():
            same(f"ranks of the group of {key}", have_ops[key][1], n_ranks)
            if size is not None:
                same(f"bytes of {key}", have_ops[key][0], size)
    if not arguments.cut:
        run(ranks, groups)
    kinds = defaultdict(int)
    for _, n in nodes:
        kinds[n["type"]] += 1
        kinds["dependencies"] += len(n["deps"])
        kinds["without_dependencies"] += not n["deps"]
    print(json.dumps({"ranks": len(ranks), "nodes": len(nodes), "groups": len(groups), **kinds}))


if __name__ == "__main__":
    main()
