#!/usr/bin/env python3
"""Compares a trace of `ncclflow export -f perfetto` with the JSON lines of the same recordings.

perfetto_trace.py TRACE LINES…

The trace is unpacked by Perfetto's own messages (PyPI: perfetto). Says what differs, and exits with 1.
"""

import gzip
import json
import pathlib
import re
import sys
from collections import defaultdict

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor, TrackEvent

from sessions import Lines, begin, fail, is_p2p, same

BEGIN, END = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END
# What of an op's row its event has.
OP_VALUES = ["opCount", "nsteps", "count", "dtype", "redOp", "algorithm", "protocol", "pattern", "root", "posted", "capturedSeq"]

INSTANT, COUNTER, STATE = TrackEvent.TYPE_INSTANT, TrackEvent.TYPE_COUNTER, TrackEvent.TYPE_STATE
REALTIME = 1

# The row's key for a wait, by what the state says.
STATES = [
    (r"own GPU fills the slot", "wait_gpu_ready_ns"),
    (r"own GPU, or buffer of rank (-?\d+)", "wait_gpu_ready_or_peer_buffer_ns"),
    (r"buffer of rank (-?\d+)", "wait_peer_buffer_ns"),
    (r"network to rank (-?\d+)", "wait_network_ns"),
    (r"data of rank (-?\d+)", "wait_network_ns"),
    (r"flush, or own GPU takes it", "wait_flush_or_gpu_consume_ns"),
    (r"flush", "wait_flush_ns"),
    (r"own GPU takes it", "wait_gpu_consume_ns"),
]


class Track:
    def __init__(self, descriptor):
        self.descriptor, self.events = descriptor, []
        self.name, self.parent = descriptor.name, descriptor.parent_uuid


class Reader:
    def __init__(self, path):
        bytes_of = pathlib.Path(path).read_bytes()
        # As Perfetto does: what is in a file says whether it is compressed.
        trace = Trace.FromString(gzip.decompress(bytes_of) if bytes_of[:2] == b"\x1f\x8b" else bytes_of)
        self.tracks, names = {}, {"names": {}, "keys": {}, "texts": {}, "categories": {}}
        first = trace.packet[0]
        if not (first.sequence_flags & 1) or first.trace_packet_defaults.timestamp_clock_id != REALTIME:
            fail("the first packet does not begin a sequence of Unix times")
        same("primary clock", first.clock_snapshot.primary_trace_clock, REALTIME)
        for packet in trace.packet:
            same("sequence", packet.trusted_packet_sequence_id, 1)
            if packet.HasField("track_descriptor"):
                track = packet.track_descriptor
                if track.uuid in self.tracks:
                    fail(f"track {track.uuid} comes twice")
                if track.HasField("parent_uuid") and track.parent_uuid not in self.tracks:
                    fail(f"track {track.name} comes before its parent")
                self.tracks[track.uuid] = Track(track)
            for kind, interned in [
                ("names", packet.interned_data.event_names),
                ("keys", packet.interned_data.debug_annotation_names),
                ("categories", packet.interned_data.event_categories),
            ]:
                names[kind].update({one.iid: one.name for one in interned})
            strings = packet.interned_data.debug_annotation_string_values
            names["texts"].update({one.iid: one.str.decode() for one in strings})
            if packet.HasField("track_event"):
                self.take(packet, names)
        same("processes are ordered", self.tracks[0].descriptor.process_ordering, TrackDescriptor.PROCESS_ORDERING_EXPLICIT)

    def take(self, packet, names):
        event = packet.track_event
        values = {}
        for one in event.debug_annotations:
            kind = one.WhichOneof("value")
            value = getattr(one, kind)
            values[names["keys"][one.name_iid]] = names["texts"][value] if kind == "string_value_iid" else value
        name = names["names"][event.name_iid] if event.HasField("name_iid") else event.name
        category = [names["categories"][iid] for iid in event.category_iids]
        if event.track_uuid not in self.tracks:
            fail(f"an event comes before its track: {event}")
        self.tracks[event.track_uuid].events.append((packet.timestamp, event, name, category[:1], values))

    def slices(self, track):
        """(begin, end, name, category, values, flows out, flows in, correlation): they follow each other."""
        open_slice, last = None, 0
        for at, event, name, category, values in track.events:
            if event.type == INSTANT:
                continue
            if at < last:
                fail(f"{track.name}: {at} comes after {last}")
            last = at
            if event.type == BEGIN:
                if open_slice:
                    fail(f"{track.name}: a slice begins in another")
                correlation = event.correlation_id if event.HasField("correlation_id") else None
                open_slice = [at, None, name, category, values, list(event.flow_ids), [], correlation]
            elif event.type == END:
                if not open_slice:
                    fail(f"{track.name}: an end without a begin")
                open_slice[1], open_slice[6] = at, list(event.terminating_flow_ids)
                yield tuple(open_slice)
                open_slice = None
        if open_slice:
            yield tuple(open_slice)

    def rank_of(self, track):
        """Communicator and rank of the track that this one is in."""
        while track.descriptor.HasField("parent_uuid"):
            found = re.search(r"(0x[0-9a-f]{16}(?:-\d+)?|no-hash)", track.name)
            rank = re.search(r"rank (\d+)( of \d+)?(?:$| \()", track.name)
            if found and rank and "channel" not in track.name:
                return found[1], int(rank[1])
            track = self.tracks[track.parent]
        return None


def one_to_one(what, pairs):
    """Each number stands for one thing, and each thing has one number."""
    there, back = {}, {}
    for number, thing in pairs:
        if there.setdefault(number, thing) != thing or back.setdefault(thing, number) != number:
            fail(f"{what}: {number} stands for {there[number]} and {thing}")


def wall(row, moment):
    return moment + row["offset"]


def compare(reader, lines):
    counts = defaultdict(int)
    measured = [m for m in lines.messages if begin(m) is not None and m.get("t_end_ns") is not None]
    measured = [m for m in measured if begin(m) <= m["t_end_ns"]]
    by_op = defaultdict(list)
    for m in measured:
        by_op[m["communicator"], m["rank"], m["seq"], m["channel"]].append(m)

    have_messages, have_ops, have_instants, have_calls = [], [], [], []
    correlations, out, into = [], {}, {}
    for track in reader.tracks.values():
        rank = reader.rank_of(track)
        # A part of the job that is not of a rank: calls.
        for at, end, name, category, values, flows_out, flows_in, correlation in reader.slices(track):
            if category == ["message"]:
                side = re.fullmatch(r"channel (\d+) (to|from) rank (-?\d+)", track.name)
                channel, peer = int(side[1]), int(side[3])
                same("direction", name, {"to": "send", "from": "receive"}[side[2]])
                size = values["bytes"] if "bytes" in values else ("at most", values["bytes_at_most"])
                have_messages.append(
                    (*rank, channel, peer, name, values["seq"], values["step"], at, end, size, values.get("bytes_measured"), values.get("proxy_pid"))
                )
                ends = (rank[1], peer) if name == "send" else (peer, rank[1])
                key = (rank[0], values["seq"], channel, ends, values["step"])
                for ids, where in [(flows_out, out), (flows_in, into)]:
                    for flow in ids:
                        if flow in where:
                            fail(f"flow {flow} has two {name}s: {where[flow]} and {key}")
                        where[flow] = key
                correlations.append((correlation, (rank, values["seq"], channel)))
            elif category == ["op"]:
                of_row = tuple(values.get(key) for key in OP_VALUES)
                have_ops.append((*rank, values["channel"], values["seq"], name, of_row, at, end, values["messages_measured"], values["bytes_measured"]))
                same("what", values["what"], "measured")
                correlations.append((correlation, (rank, values["seq"], values["channel"])))
            elif category == ["call"]:
                have_calls.append((name, at, end))
            else:
                fail(f"a slice of no kind on {track.name}")
        for at, event, name, category, values in track.events:
            if event.type == INSTANT and category == ["op"]:
                same("what", values["what"], "planned")
                of_row = tuple(values.get(key) for key in OP_VALUES)
                have_instants.append((*rank, values["channel"], values["seq"], name, of_row, at))
                correlations.append((event.correlation_id, (rank, values["seq"], values["channel"])))
            elif event.type == INSTANT:
                have_calls.append((name, at, None))

    def message_of(m):
        size = m["bytes"] if m["bytes_kind"] == "exact" else ("at most", m["bytes"])
        name = "send" if m["op"] == "SEND" else "receive"
        return (
            m["communicator"], m["rank"], m["channel"], m["peer"], name, m["seq"], m["step"],
            wall(m, begin(m)), None if m.get("t_end_ns") is None else wall(m, m["t_end_ns"]), size, m.get("bytes_measured"), m.get("proxy_pid"),
        )  # fmt: skip

    # What was on its way when the recording ended has a begin only.
    ends = {(o["communicator"], o["rank"], o["seq"], o["channel"]) for o in lines.ops if o.get("measured") == "session_ended"}
    of_end = [m for m in lines.messages if (m["communicator"], m["rank"], m["seq"], m["channel"]) in ends]
    on_way = [m for m in of_end if begin(m) is not None and m.get("t_end_ns") is None]
    same("messages", have_messages, [message_of(m) for m in measured + on_way])
    counts["open"] = len(on_way)
    want_ops, want_instants, drawn = [], [], set()
    for o in lines.ops:
        of = by_op.get((o["communicator"], o["rank"], o["seq"], o["channel"]))
        of_row = tuple(o.get(key) for key in OP_VALUES)
        key = (o["communicator"], o["rank"], o["channel"], o["seq"], o["coll"] or o["pattern"], of_row)
        if of:
            size = sum(m.get("bytes_measured") or 0 for m in of)
            first, last = min(begin(m) for m in of), max(m["t_end_ns"] for m in of)
            want_ops.append((*key, wall(o, first), wall(o, last), len(of), size))
        elif (o["communicator"], o["rank"], o["seq"]) not in drawn:
            # What was only planned stands once, on the first of its channels.
            drawn.add((o["communicator"], o["rank"], o["seq"]))
            want_instants.append((*key, wall(o, o["ts_ns"])))
    same("ops", have_ops, want_ops)
    same("planned ops", have_instants, want_instants)
    want_calls = []
    for c in lines.calls:
        took = c.get("host_ns")
        want_calls.append((c["function"], wall(c, c["ts_ns"]), None if took is None else wall(c, c["ts_ns"]) + took))
    same("calls", have_calls, want_calls)

    # A collective has one number on all its ranks and channels; a send or receive one on its rank.
    ops = {((o["communicator"], o["rank"]), o["seq"], o["channel"]): o for o in lines.ops}
    pairs = []
    for number, (rank, seq, channel) in correlations:
        o = ops[rank, seq, channel]
        if o.get("seqLocal"):
            same("correlation of a number of a part", number or None, None)
        else:
            pairs.append((number, (rank, seq) if is_p2p(o) else (rank[0], seq)))
    one_to_one("correlation", pairs)

    # Arrows: those of messages that were measured at both ends, and only those.
    for flow, key in into.items():
        if flow in out:
            same("flow", key, out[flow])
    by_end = {"SEND": set(), "RECV": set()}
    for m in measured + [m for m in on_way if m["op"] == "SEND"]:
        o = ops[(m["communicator"], m["rank"]), m["seq"], m["channel"]]
        if not is_p2p(o) and not o.get("seqLocal") and 0 <= m["peer"] < o["nRanks"]:
            ends = (m["rank"], m["peer"]) if m["op"] == "SEND" else (m["peer"], m["rank"])
            by_end[m["op"]].add((m["communicator"], m["seq"], m["channel"], ends, m["step"]))
    same("arrows out", sorted(out.values()), sorted(by_end["SEND"]))
    same("arrows in", sorted(into.values()), sorted(by_end["RECV"]))

    counts["states"] = compare_states(reader, measured)
    counts["counters"] = compare_counters(reader, lines)
    counts.update(messages=len(have_messages), ops=len(have_ops), planned=len(have_instants), calls=len(have_calls))
    counts.update(arrows=len(out.keys() & into.keys()), processes=sum(t.descriptor.HasField("process") for t in reader.tracks.values()))
    counts["tracks"] = len(reader.tracks)
    return counts


def compare_states(reader, measured):
    have = []
    for track in reader.tracks.values():
        if not track.descriptor.HasField("state"):
            continue
        rank, channel = reader.rank_of(track), int(re.match(r"channel (\d+)", track.name)[1])
        peer, is_send = int(re.search(r"rank (-?\d+): waits", track.name)[1]), " to rank" in track.name
        last, state = 0, ""
        for at, event, name, _, _ in track.events:
            same("type", event.type, STATE)
            if at < last:
                fail(f"{track.name}: {at} comes after {last}")
            if state:
                key = next((key, found) for text, key in STATES if (found := re.fullmatch(text, state)))
                if key[1].groups() and int(key[1][1]) != peer:
                    fail(f"{track.name}: {state}")
                have.append((*rank, channel, peer, is_send, key[0], last, at - last))
            last, state = at, name
        same("last state", state, "")
    want = []
    for m in measured:
        is_send = m["op"] == "SEND"
        begins = {
            "wait_gpu_ready_ns": begin(m),
            "wait_gpu_ready_or_peer_buffer_ns": begin(m),
            "wait_peer_buffer_ns": m.get("t_ready_ns"),
            "wait_network_ns": m.get("t_sent_ns") if is_send else begin(m),
            "wait_flush_ns": m.get("t_arrived_ns"),
            "wait_flush_or_gpu_consume_ns": m.get("t_arrived_ns"),
            "wait_gpu_consume_ns": m.get("t_handed_ns"),
        }
        for key, at in begins.items():
            if m.get(key):
                want.append((m["communicator"], m["rank"], m["channel"], m["peer"], is_send, key, wall(m, at), m[key]))
    same("states", have, want)
    return len(have)


def compare_counters(reader, lines):
    want = defaultdict(lambda: defaultdict(int))
    ops = {(o["communicator"], o["rank"], o["seq"], o["channel"]): o for o in lines.ops}

    def width(track):
        return int(re.search(r"per (\d+) ms", track.name)[1]) * 1_000_000

    counters = [t for t in reader.tracks.values() if t.descriptor.HasField("counter")]
    width_ns = width(counters[0]) if counters else 1
    for m in lines.messages:
        rank, is_send = (m["communicator"], m["rank"]), m["op"] == "SEND"
        if is_send and m["bytes_kind"] == "exact":
            at = wall(m, ops[(*rank, m["seq"], m["channel"])]["ts_ns"])
            want[rank, "to be sent (planned)"][at // width_ns] += m["bytes"]
        if m.get("t_end_ns") is not None and m.get("bytes_measured") is not None:
            name = "sent (measured)" if is_send else "received (measured)"
            want[rank, name][wall(m, m["t_end_ns"]) // width_ns] += m["bytes_measured"]
    have = {}
    for track in counters:
        same("width", width(track), width_ns)
        name = re.fullmatch(r"bytes (.*) per \d+ ms", track.name)[1]
        values, last = {}, -1
        for at, event, _, _, _ in track.events:
            same("type", event.type, COUNTER)
            if at <= last:
                fail(f"{track.name}: {at} comes after {last}")
            last = at
            same("begin of a span", at % width_ns, 0)
            values[at // width_ns] = event.counter_value
        have[reader.rank_of(track), name] = {span: value for span, value in values.items() if value}
    same("counters", have, {key: {s: v for s, v in spans.items() if v} for key, spans in want.items()} if any(want) else {})
    return sum(len(spans) for spans in have.values())


def main():
    reader = Reader(sys.argv[1])
    print(json.dumps(compare(reader, Lines(sys.argv[2:]))))


main()
