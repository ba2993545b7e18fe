"""The JSON lines of a recording, which the views are compared with; and how a comparison fails."""

import pathlib
import sys
from collections import Counter

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "parquet"))
from lines import Session  # noqa: E402


def fail(message):
    sys.exit(f"differs: {message}")


def same(what, have, want):
    """Both are multisets, or both are values."""
    if isinstance(want, list):
        have, want = Counter(have), Counter(want)
        if have != want:
            more, less = have - want, want - have
            fail(f"{what}: {sum(more.values())} too many, as {list(more)[:2]}; {sum(less.values())} missing, as {list(less)[:2]}")
    elif have != want:
        fail(f"{what}: {have}, not {want}")


def begin(message):
    """When a message could begin: measured, or else when its slot was free."""
    moment = message.get("t_start_ns" if message["op"] == "SEND" else "t_posted_ns")
    return message.get("t_slot_free_ns") if moment is None else moment


def is_p2p(row):
    return row["pattern"] in ("SEND", "RECV")


class Lines:
    """Rows of several sessions, each with the Unix time of its clock's zero."""

    def __init__(self, folders):
        self.ops, self.messages, self.calls = [], [], []
        for folder in folders:
            session = Session(folder)
            offset = session.offset or 0
            for rows, of in [(self.ops, session.ops), (self.messages, session.messages), (self.calls, session.calls)]:
                rows.extend({**row, "offset": offset} for row in of)
