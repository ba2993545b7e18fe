#!/usr/bin/env python3
"""Opens a page of `ncclflow report` in headless Chromium and compares what it shows with the JSON lines of the same recordings.

report_page.py PAGE LINES… [--check CHECK.json] [--seconds 2]
report_page.py PAGE --only-open [--rounds 5]

The second form compares nothing with lines: it is for pages of recordings whose lines nobody wants to make.

A script is added to a copy of the page, and its hash to the page's policy, that writes down the numbers that each picture is drawn
from, and whether each canvas has a picture. Then the same is done with a copy whose names are hostile. Says what differs, and
exits with 1; else prints what was compared.
"""

import argparse
import base64
import hashlib
import html
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "exports"))
from sessions import Lines, begin, fail, is_p2p, same  # noqa: E402

BROWSERS = ["chromium-headless-shell", "chromium", "google-chrome"]
WAITS = ["gpu_ready", "peer_buffer", "gpu_ready_or_peer_buffer", "network", "from_peer", "flush", "gpu_consume", "flush_or_gpu_consume"]
DATA = re.compile(r'(<script type="application/json" id="data">)(.*?)(</script>)', re.S)

# Canvases that are outside of what fits on the screen have pictures, too.
PROBE = """
(() => {
  const shown = {};
  for (const [name, read] of Object.entries(NcclReport.shown)) shown[name] = read();
  const colours = [...document.querySelectorAll("canvas")].map((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size;
  });
  const canvas = document.querySelector("#lanes canvas");
  let frames = 0;
  const begun = performance.now();
  if (canvas) for (; frames < 20; frames += 1) dispatchEvent(new Event("beforeprint"));
  // As a person at the keyboard, and with a mouse: nothing breaks, and something is told.
  const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const walked = [];
  if (canvas) {
    for (const key of ["ArrowRight", "ArrowRight", "ArrowDown", "+", "-", "0"]) press(key);
    walked.push(document.getElementById("timeline-live").textContent);
    const box = canvas.getBoundingClientRect();
    const at = { clientX: box.left + box.width / 2, clientY: box.top + 12, bubbles: true };
    canvas.dispatchEvent(new WheelEvent("wheel", { ...at, deltaY: -100, ctrlKey: true, cancelable: true }));
    for (let x = 130; x < box.width; x += 1) canvas.dispatchEvent(new PointerEvent("pointermove", { ...at, clientX: box.left + x }));
  }
  const said = {
    walked, headings: [...document.querySelectorAll("h3")].map((heading) => heading.textContent),
    shown, colours, ready: document.documentElement.dataset.ready, first: Number(document.documentElement.dataset.firstPicture || NaN), ms: READY_MS, redraw_ms: frames ? (performance.now() - begun) / frames : 0,
    scripts: document.scripts.length, images: document.images.length, frames: document.querySelectorAll("iframe,object,embed").length,
    owned: typeof globalThis.owned !== "undefined", sentence: document.getElementById("sentence").textContent,
    text: document.body.innerText, title: document.title,
    fetched: performance.getEntriesByType("resource").map((entry) => entry.name),
  };
  const out = document.createElement("pre");
  out.id = "said";
  out.textContent = JSON.stringify(said);
  document.body.append(out);
})();
"""
HOSTILE = "</script><script>globalThis.owned=1</script><img src=x onerror='globalThis.owned=1'>\u202e<!--"


def browser():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        fail(f"none of {', '.join(BROWSERS)} is installed")
    return found


def opened(page, change=lambda data: data):
    """What the page says of itself in a browser, and what its console had."""
    probe = PROBE.replace("READY_MS", "performance.now()", 1)
    digest = base64.b64encode(hashlib.sha256(probe.encode()).digest()).decode()
    if page.count("script-src ") != 1:
        fail("the page has no policy, or several")
    page = page.replace("script-src ", f"script-src 'sha256-{digest}' ").replace("</body>", f"<script>{probe}</script></body>")
    page = DATA.sub(lambda found: found[1] + change(found[2]) + found[3], page, count=1)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "page.html"
        path.write_text(page)
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}/user", "--window-size=1400,900",
                   "--enable-logging=stderr", "--dump-dom", path.as_uri()]
        done = subprocess.run([browser(), *options], capture_output=True, text=True, timeout=120)
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    said = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.S)
    if not said:
        fail(f"the page's scripts did not end: {console} {done.stderr[-2000:]}")
    return json.loads(html.unescape(said[1])), console


def escaped(data):
    return json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def hostile(text):
    """The same data, with names that would like to be part of the page."""
    data = json.loads(text)
    for comm in data["comms"]:
        comm["commName"] = HOSTILE
    data["hosts"] = [HOSTILE for _ in data["hosts"]]
    data["verdict"]["sentence"] = HOSTILE
    data["verdict"]["findings"] = [{"comm": None, "window": HOSTILE, "kind": HOSTILE, "text": HOSTILE, "ranks": []}] * 2
    for job in data["jobs"]:
        job["name"] = job["sentence"] = HOSTILE
        for iterations in job["iterations"]:
            for rank in iterations["parts"]:
                rank["host"] = HOSTILE
    data["jobs"].append({"name": HOSTILE, "consistent": True, "sentence": HOSTILE, "comms": [], "iterations": []})
    for kind in data["kinds"]:
        kind["function"] = HOSTILE
    for source in data["sources"]:
        source["path"] = source["host"] = source["state"] = HOSTILE
        source["notes"] = [HOSTILE]
    row = {"line": HOSTILE, "frames": [HOSTILE, HOSTILE], "unknown": None, "functions": [HOSTILE], "ops": 1, "calls": 1, "bytes": 1, "totalNs": 1, "waitsNs": [0] * 8}
    data["code"] = [row]
    return escaped(data)


def waits_of(messages):
    sums = [0] * 8
    for m in messages:
        for at, wait in enumerate(WAITS):
            key = "network" if wait == "from_peer" else wait
            if wait in ("network", "from_peer") and (wait == "network") != (m["op"] == "SEND"):
                continue
            sums[at] += m.get(f"wait_{key}_ns") or 0
    return sums


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("lines", nargs="*")
    parser.add_argument("--check", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--only-open", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    page = arguments.page.read_text()
    if arguments.only_open:
        only_open(arguments, page)
        return
    data = json.loads(DATA.search(page)[2])
    said, console = opened(page)
    same("errors on the console", console, [])
    same("the page is ready", said["ready"], "yes")
    same("what was fetched", said["fetched"], [])
    if said["shown"].get("timeline") and not (said["first"] and said["first"] <= arguments.seconds * 1000):
        fail(f"the first picture took {said['first']} ms")
    if not said["colours"] or min(said["colours"]) < 2:
        fail(f"a canvas is empty: {said['colours']}")
    same("sentence", said["sentence"], data["verdict"]["sentence"])
    if said["shown"].get("timeline") and "rank " not in said["walked"][0]:
        fail(f"the keys of the timeline tell nothing: {said['walked']}")
    compared = compare(said["shown"], data, Lines(arguments.lines), arguments)

    bad, console = opened(page, hostile)
    same("hostile names: ready, errors", (bad["ready"], console), ("yes", []))
    same("hostile names: scripts run, elements made", (bad["owned"], bad["images"], bad["frames"], bad["scripts"]), (False, 0, 0, said["scripts"]))
    # What would turn the text around is replaced, and the rest is there as text.
    same("hostile names: shown as text", bad["sentence"], HOSTILE.replace("\u202e", "\ufffd"))
    compared.update(ms=round(said["ms"]), first_picture_ms=said["first"], redraw_ms=round(said["redraw_ms"], 1), canvases=len(said["colours"]), bytes=len(page))
    print(json.dumps(compared))


def only_open(arguments, page):
    data = json.loads(DATA.search(page)[2])
    first, redraw = [], []
    for _ in range(arguments.rounds):
        said, console = opened(page)
        same("errors on the console", console, [])
        same("the page is ready", said["ready"], "yes")
        same("what was fetched", said["fetched"], [])
        if not said["colours"] or min(said["colours"]) < 2:
            fail(f"a canvas is empty: {said['colours']}")
        first.append(said["first"])
        redraw.append(round(said["redraw_ms"], 1))
    lanes = said["shown"]["timeline"]["lanes"]
    ops = sum(sum(lane["ops"]) for lane in lanes)
    same("operations on the timeline", ops, sum(kind["ops"] for kind in data["kinds"]))
    merge = said["shown"]["timeline"]["merge"]
    if merge > 1 and not any("up to %d consecutive" % merge in sentence for sentence in data["summedUp"]):
        fail(f"bars are {merge} operations each, and the page does not say so: {data['summedUp']}")
    # Of several jobs, each has a heading with the verdict and with its iterations.
    headings = sum("Job " in heading for heading in said["headings"])
    print(json.dumps({"parts": of_parts(said["shown"]["parts"]), "headings": headings, "bytes": len(page.encode()), "first_picture_ms": first, "redraw_ms": redraw, "operations": ops,
                      "bars": sum(len(lane["at"]) for lane in lanes), "merge": merge, "summed_up": data["summedUp"]}))


def compare(shown, data, lines, arguments):
    t0 = int(data["t0"])
    ops, messages = defaultdict(list), defaultdict(list)
    for row in lines.ops:
        ops[row["communicator"], row["rank"], is_p2p(row), row["seq"] >> 1].append(row)
    # Messages of ops of which something was looked for.
    measured_ops = {(o["communicator"], o["rank"], o["seq"], o["channel"]) for o in lines.ops if any("messagesMeasured" in p for p in o["peers"])}
    for row in lines.messages:
        if (row["communicator"], row["rank"], row["seq"], row["channel"]) in measured_ops:
            messages[row["communicator"], row["rank"], is_p2p(row), row["seq"] >> 1].append(row)

    want, spans = {}, {}
    for key, rows in ops.items():
        ended = [(begin(m) + m["offset"], m["t_end_ns"] + m["offset"]) for m in messages[key] if begin(m) is not None and m.get("t_end_ns") is not None]
        spans[key] = (min(b for b, _ in ended), max(e for _, e in ended)) if ended else None
        at = min(r["ts_ns"] + r["offset"] for r in rows) if not ended else spans[key][0]
        until = at if not ended else spans[key][1]
        waits = [ns // 1000 for ns in waits_of(messages[key])]
        want[key] = ((at - t0) // 1000, (until - t0) // 1000 - (at - t0) // 1000, bool(ended), waits)
    have = {}
    if shown["timeline"]["merge"] == 1:
        for lane in shown["timeline"]["lanes"]:
            for at, number in enumerate(lane["number"]):
                key = lane["comm"], lane["rank"], lane["p2p"], int(number)
                waits = [column[at] if column else 0 for column in lane["waits"]]
                if key in have:
                    fail(f"timeline: {key} comes twice")
                have[key] = (lane["at"][at], lane["us"][at], lane["measured"][at] > 0, waits)
        same("bars of the timeline", set(have), set(want))
        for key in want:
            same(f"timeline: {key}", have[key], want[key])
    else:
        # Bars are several ops: none is lost, and waits are all there, but for fractions of microseconds.
        same("ops on the timeline", sum(sum(lane["ops"]) for lane in shown["timeline"]["lanes"]), len(ops))
    lengths = sorted(((e - b) // 1000 for b, e in filter(None, spans.values())), reverse=True)[:100]
    same("longest ops", sorted((op["us"] for op in shown["longest"]), reverse=True), lengths)

    pairs = {}
    sends = defaultdict(list)
    recorded = {(o["communicator"], o["rank"]) for o in lines.ops}
    for m in lines.messages:
        if m["op"] == "SEND":
            sends[m["communicator"], m["rank"], m["peer"]].append(m)
        elif (m["communicator"], m["peer"]) not in recorded:
            sends[m["communicator"], m["peer"], m["rank"]].append(m)
    for key, rows in sends.items():
        sized = [m["bytes_measured"] for m in rows if m.get("bytes_measured") is not None]
        pairs[key] = (sum(m["bytes"] for m in rows), sum(sized) if sized else None, len(rows))
    shown_pairs = {(of["comm"], p["from"], p["to"]): (p["planned"], p["measured"], p["messages"]) for of in shown["traffic"] for p in of["pairs"]}
    same("traffic", shown_pairs, pairs)

    links = defaultdict(lambda: [0, 0, 0, [0] * 8])
    busy = defaultdict(dict)
    for m in lines.messages:
        link = links[m["communicator"], m["rank"], m["peer"], m["op"]]
        for at, ns in enumerate(waits_of([m])):
            link[3][at] += ns
        if begin(m) is None or m.get("t_end_ns") is None:
            continue
        link[0] += 1
        link[1] += m["bytes"] if m.get("bytes_measured") is None else m["bytes_measured"]
        times = busy[m["communicator"], m["rank"], m["peer"], m["op"]]
        b, e = times.get(m["seq"], (begin(m), m["t_end_ns"]))
        times[m["seq"]] = (min(b, begin(m)), max(e, m["t_end_ns"]))
    for key, times in busy.items():
        links[key][2] = sum(e - b for b, e in times.values())
    have = {(of["comm"], of["rank"], of["peer"], of["op"]): [of["ended"], of["moved"], of["busyNs"], of["waitsNs"]] for of in shown["links"]}
    same("links", have, dict(links))

    rates = shown["rates"] if "rates" in shown else {"widthUs": 1, "at": [], "sent": [], "planned": []}
    width = rates["widthUs"] * 1000
    sent, planned = Counter(), Counter()
    ts = {key: min(r["ts_ns"] + r["offset"] for r in rows) for key, rows in ops.items()}
    for m in lines.messages:
        if m["op"] != "SEND":
            continue
        if m.get("t_end_ns") is not None and m.get("bytes_measured") is not None:
            sent[(m["t_end_ns"] + m["offset"]) // width] += m["bytes_measured"]
        planned[ts[m["communicator"], m["rank"], is_p2p(m), m["seq"] >> 1] // width] += m["bytes"]
    same("bytes sent, all together", sum(rates["sent"]), sum(sent.values()))
    same("bytes planned, all together", sum(rates["planned"]), sum(planned.values()))
    first = min([span for span in sent | planned if sent[span] or planned[span]], default=0)
    for at, value in enumerate(rates["sent"]):
        same(f"bytes sent in span {at}", value, sent[first + at])

    kinds = defaultdict(lambda: [0, 0, 0])
    for key, rows in ops.items():
        row = rows[0]
        api, coll = row["collApi"] or row["coll"], row["coll"]
        kind = kinds[api, coll if coll != api else None, row["algorithm"], row["protocol"], len({r["channel"] for r in rows})]
        kind[0] += 1
        if spans[key]:
            kind[1] += 1
            kind[2] += spans[key][1] - spans[key][0]
    have = defaultdict(lambda: [0, 0, 0])
    for kind in shown["kinds"]:
        if kind["isCall"]:
            continue
        sums = have[kind["function"], kind["runsAs"], kind["algorithm"], kind["protocol"], kind["channels"]]
        for at, value in enumerate([kind["ops"], kind["measured"], kind["totalNs"]]):
            sums[at] += value
    same("kinds of operations", dict(have), dict(kinds))
    # AllReduce has its own type in the line; others are counted in bytes there.
    size = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int8": 1, "int32": 4}
    reduced = Counter(rows[0]["count"] * size[rows[0]["dtype"]] for rows in ops.values() if rows[0]["coll"] == "AllReduce" and rows[0]["count"])
    have = Counter()
    for kind in shown["kinds"]:
        if kind["function"] == "AllReduce" and kind["bytes"] is not None and not kind["rounded"] and not kind["isCall"]:
            have[kind["bytes"]] += kind["ops"]
    same("sizes of all-reduces", have, reduced)

    rings = defaultdict(set)
    for row in lines.ops:
        if row["ringNext"] >= 0 and row["ringNext"] != row["rank"]:
            rings[row["communicator"], row["channel"]].add((row["rank"], row["ringNext"]))
        if row["ringPrev"] >= 0 and row["ringPrev"] != row["rank"]:
            rings[row["communicator"], row["channel"]].add((row["ringPrev"], row["rank"]))
    have = {}
    for comm, of in zip(data["comms"], shown["topology"]):
        for ring, edges in zip(comm["rings"], of["rings"]):
            for channel in ring["channels"]:
                have[comm["name"], channel] = {tuple(edge) for edge in edges}
    same("rings", have, dict(rings))

    network = Counter()
    for rows in messages.values():
        for m in rows:
            if m["op"] == "SEND" and m.get("wait_network_ns") is not None:
                network[m["communicator"], m["rank"], m["peer"]] += m["wait_network_ns"]
    have = Counter({(of["comm"], d["rank"], d["peer"]): d["networkNs"] for of in shown["delays"] for d in of["delays"]})
    same("messages in the network", +have, +network)
    if arguments.check:
        of_check(shown, data, json.loads(arguments.check.read_text()))
    for process in shown["iterations"]:
        same("iterations on the chart", sum(process["n"]), process["iterations"])
    parts = of_parts(shown["parts"])
    losses = {json.dumps(sorted(of["loss"])) for of in shown["losses"]}
    # A key that older versions wrote, and one that they did not have.
    known = ({"records_not_recorded": 0, **report["loss"]} for report in reports(arguments.lines))
    known = ({key: of for key, of in loss.items() if key != "records_not_captured"} for loss in known)
    same("losses", losses, {json.dumps(sorted([k, v] for k, v in loss.items())) for loss in known})
    return {"bars": len(ops), "measured": sum(1 for span in spans.values() if span), "messages": len(lines.messages), "pairs": len(pairs), "links": len(links), "spans": len(rates["sent"]),
            "kinds": len(kinds), "rings": len(rings), "iterations": sum(of["iterations"] for of in shown["iterations"]), "merge": shown["timeline"]["merge"], "code": len(shown["code"]), "parts": parts,
            "stalls": len(data["verdict"]["stalls"]), "jobs": len(data["jobs"])}


PARTS = ["computingMs", "ownGpuMs", "lateMs", "waitingMs", "networkMs", "idleMs", "notMeasuredMs"]


def of_parts(pictures):
    """A bar has the parts of its rank's iteration, in their order, each as wide as it is long. Returns the number of bars."""
    for picture in pictures:
        scales = []
        for rank, bar in zip(picture["parts"], picture["bars"], strict=True):
            want = [(key, rank[key]) for key in PARTS if rank.get(key)]
            same(f"parts of rank {rank['rank']}", [key for key, _ in bar], [key for key, _ in want])
            scales += [width / ms for (_, width), (_, ms) in zip(bar, want) if width > 20]
        if scales and max(scales) > min(scales) * 1.01:
            fail(f"bars have different scales: {min(scales)} to {max(scales)} pixels in a millisecond")
    return sum(len(picture["bars"]) for picture in pictures)


def reports(folders):
    for folder in folders:
        report = json.loads((pathlib.Path(folder) / "session.json").read_text())
        yield from report.get("sessions", [report])


def of_check(shown, data, checked):
    """What `ncclflow check --json` says of the same recordings."""
    same("findings", sorted(of["text"].lower().rstrip(".") for of in data["verdict"]["findings"]),
         sorted(of["text"].lower() for comm in checked["communicators"] for of in comm["findings"]))
    want = {}
    for comm in checked["communicators"]:
        for rank in comm["verdict"]["ranks"]:
            for key, at in [("forDataNs", 0), ("forSlotNs", 1)]:
                for peer, ns in rank[key].items():
                    want.setdefault((comm["communicator"], rank["rank"], int(peer)), [0, 0])[at] = ns
    have = {(of["comm"], d["rank"], d["peer"]): [d["dataNs"], d["slotNs"]] for of in shown["delays"] for d in of["delays"] if d["dataNs"] or d["slotNs"]}
    same("delays", have, {key: value for key, value in want.items() if any(value)})


main()
