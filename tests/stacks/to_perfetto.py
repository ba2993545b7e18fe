#!/usr/bin/env python3
"""Kineto's JSON as a Perfetto trace: to_perfetto.py plain|interned|compressed INPUT OUTPUT. Standard library only; the numbers of
fields are those of Perfetto's .proto files.

Each thread and stream is a track of a writer of its own. A launch and its kernels have a flow.

plain       names in each event, times on the trace's clock
interned    names once, times as distances on a clock of the writer that has units of 1 ns and begins at a snapshot, tracks by
            defaults; state is cleared in the middle, and repeated
compressed  as interned, with packets compressed in bundles
"""

import decimal
import gzip
import itertools
import json
import sys
import zlib

BOOTTIME, INCREMENTAL = 6, 64


def varint(number):
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def number(field, value):
    return varint(field << 3) + varint(value)


def fixed(field, value):
    return varint(field << 3 | 1) + value.to_bytes(8, "little")


def message(field, *parts):
    body = b"".join(parts)
    return varint(field << 3 | 2) + varint(len(body)) + body


def text(field, value):
    return message(field, value.encode())


def read(path):
    with gzip.open(path) as file:
        events = json.load(file, parse_float=decimal.Decimal)["traceEvents"]
    slices = [event for event in events if event.get("ph") == "X" and event.get("cat") != "Trace"]
    for order, event in enumerate(slices):
        event["begin"] = int(decimal.Decimal(event["ts"]) * 1000)
        event["end"] = event["begin"] + int(decimal.Decimal(event["dur"]) * 1000)
        event["order"] = order
    return slices


def ordered(slices):
    """Begins and ends of the slices of a track, so that they nest."""
    opened, out = [], []

    def close(until):
        while opened and opened[-1]["end"] <= until:
            out.append((opened.pop()["end"], None))

    for event in sorted(slices, key=lambda event: (event["begin"], -event["end"], event["order"])):
        close(event["begin"])
        # Begins and ends cannot say that a slice goes on when the one around it has ended, as torch's annotations do: the
        # one around it ends early.
        while opened and opened[-1]["end"] < event["end"]:
            opened[-1]["end"] = event["begin"]
            close(event["begin"])
        out.append((event["begin"], event))
        opened.append(event)
    close(float("inf"))
    return out


class Writer:
    def __init__(self, sequence, uuid, is_interned):
        self.sequence, self.uuid, self.is_interned = sequence, uuid, is_interned
        self.last, self.names, self.categories = 0, {}, {}

    def packet(self, *parts):
        return message(1, *parts, number(10, self.sequence))

    def begin(self, at):
        """What comes before events: clears the state, and has a snapshot of the clocks."""
        self.last, self.names, self.categories = at, {}, {}
        # The writer's own clock is 5 behind.
        clocks = [
            message(1, number(1, BOOTTIME), number(2, at)),
            message(1, number(1, INCREMENTAL), number(2, at - 5), number(3, 1), number(4, 1)),
        ]
        defaults = message(59, message(11, number(11, self.uuid)), number(58, INCREMENTAL))
        yield self.packet(message(6, *clocks), defaults, number(13, 1))

    def interned(self, known, field, name):
        if name in known:
            return known[name], b""
        known[name] = len(known) + 1
        return known[name], message(field, number(1, known[name]), text(2, name))

    def event(self, at, event):
        flow = b""
        if event is not None and event.get("args", {}).get("correlation"):
            flow = fixed(47, event["args"]["correlation"])
        if not self.is_interned:
            body = [number(11, self.uuid), number(9, 1 if event else 2), flow]
            if event:
                body += [text(22, event["cat"]), text(23, event["name"])]
            return self.packet(number(8, at), message(11, *body))
        body, data = [number(9, 1 if event else 2), flow], b""
        if event:
            category, new_category = self.interned(self.categories, 1, event["cat"])
            name, new_name = self.interned(self.names, 2, event["name"])
            body += [number(3, category), number(10, name)]
            data = message(12, new_category, new_name) if new_category or new_name else b""
        distance, self.last = at - self.last, at
        return self.packet(number(8, distance), number(13, 2), data, message(11, *body))


def main():
    form, source, target = sys.argv[1:]
    tracks = {}
    for event in read(source):
        tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    written = []
    for number_of, ((pid, tid), slices) in enumerate(tracks.items(), 1):
        writer = Writer(number_of, 1000 + number_of, form != "plain")
        thread = message(4, number(1, pid), number(2, tid))
        packets = [writer.packet(message(60, number(1, writer.uuid), thread))]
        if writer.is_interned:
            # Lost, and so not to be understood.
            packets.append(writer.packet(number(8, 1), number(13, 2), message(11, number(9, 1), number(10, 77))))
        for order, (at, event) in enumerate(ordered(slices)):
            if writer.is_interned and order % 500 == 0:
                packets.extend(writer.begin(at))
            packets.append(writer.event(at, event))
        written.append(packets)
    # Writers take turns, a packet each.
    turns = [packet for turn in itertools.zip_longest(*written) for packet in turn if packet]
    if form == "compressed":
        bundles = [b"".join(turns[at : at + 300]) for at in range(0, len(turns), 300)]
        turns = [message(1, message(50, zlib.compress(bundle))) for bundle in bundles]
    with open(target, "wb") as out:
        out.write(b"".join(turns))


main()
