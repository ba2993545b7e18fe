#!/usr/bin/env python3
"""Whether a recording has the launches of CUDA graphs, and the operations that they replayed, as the ranks tell them.

    graph_replays.py FOLDER < TRUTHS        each line: `{…}` as graphs_job.py prints it behind `truth`

A replayed operation is a line with `graphLaunch` or, where it has a proxy, the lines of one `seq`, which were posted.
"""

import collections
import json
import pathlib
import sys

BYTES = {"float32": 4, "int8": 1}


def operation(line):
    bytes = line["count"] * BYTES[line["dtype"]] if line["coll"] == "AllReduce" and line["count"] is not None else None
    return line["coll"] if bytes is None else f"{line['coll']} {bytes}"


def recorded(folder):
    """By rank: operations that are known by a launch of their graph, and those that the proxy got."""
    launched, posted = collections.defaultdict(collections.Counter), collections.defaultdict(collections.Counter)
    seen = set()
    for path in sorted(pathlib.Path(folder).glob("*/*.jsonl")):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            if "coll" not in line:
                continue
            if "graphLaunch" in line:
                launched[line["rank"]][operation(line)] += 1
            elif line["posted"] and (key := (line["rank"], line["commHash"], line["seq"])) not in seen:
                seen.add(key)
                posted[line["rank"]][operation(line)] += 1
    return launched, posted


def main():
    truths = [json.loads(line) for line in sys.stdin if line.strip()]
    launched, posted = recorded(sys.argv[1])
    session = json.loads((pathlib.Path(sys.argv[1]) / "session.json").read_text())
    graphs = session["model"]["graphs"]
    problems = []
    for target in session["targets"]:
        if target.get("no_graph_launches"):
            problems.append(f"process {target['pid']}: {target['no_graph_launches']}")
    for truth in truths:
        by_launch, by_proxy = launched[truth["rank"]], posted[truth["rank"]]
        for name, count in truth["replayed"].items():
            # The proxy is told of replays of graphs that were captured before, too.
            expected = count + truth["early"].get(name, 0) if by_proxy[name] else count
            if by_launch[name] + by_proxy[name] != expected or (by_launch[name] and by_proxy[name]):
                found = f"{by_launch[name]} by launches and {by_proxy[name]} by the proxy"
                problems.append(f"rank {truth['rank']}: {name} was replayed {expected} times, and recorded {found}")
    for key in ("launches", "unknown", "without_ops"):
        if graphs[key] != sum(truth[key] for truth in truths):
            problems.append(f"{key}: counted {graphs[key]}, were {sum(truth[key] for truth in truths)}")
    hits = {probe["function"]: probe["hits"] for probe in session["probes"] if probe["function"].startswith("cuGraph")}
    by_launch, by_proxy = (sum(map(collections.Counter.total, ranks.values())) for ranks in (launched, posted))
    print(f"{by_launch} operations by launches, {by_proxy} by the proxy; {json.dumps(graphs)}; hits {json.dumps(hits)}")
    print("\n".join(problems))
    sys.exit(0 if truths and not problems else 1)


if __name__ == "__main__":
    main()
