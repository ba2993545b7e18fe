"""The JSON lines of sessions: what the tables are compared with."""

import gzip
import json
import pathlib
import re

OWN_NAME = re.compile(r"\w+_rank\d+\.jsonl(\.gz)?")


def read_lines(path):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        for line in file:
            yield json.loads(line)


class Session:
    """The lines of one folder of `ncclflow record` or `export -f jsonl`, with `comm` (the folder) in each."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.report = json.loads((folder / "session.json").read_text())
        self.offset = self.report["clock"]["offset_ns"] or None
        jobs = {t["pid"]: (t.get("job") or {}).get("name") for t in self.report["targets"]}
        self.job_of = lambda pid: jobs.get(pid) or "unknown"
        self.nics = {(c["folder"], c["rank"], c["pid"]): c.get("nics") or [] for c in self.report.get("communicators") or []}
        self.ops, self.messages, self.calls = [], [], []
        # Of a window each process has a folder. Files have second names there, which are not counted again.
        for path in sorted(path for path in folder.glob("**/*_rank*.jsonl*") if OWN_NAME.fullmatch(path.name)):
            kind = path.name.split("_rank")[0]
            rows = {"proxy_flow": self.ops, "flow_steps": self.messages, "api": self.calls}.get(kind)
            if rows is not None:
                rows.extend({"communicator": path.parent.name, **row} for row in read_lines(path))
        for path in sorted(folder.glob("**/processes/api_*.jsonl*")):
            self.calls.extend({"communicator": None, **row} for row in read_lines(path))
        by_op = {(o["communicator"], o["rank"], o["seq"], o["channel"]): o for o in self.ops}
        for row in self.messages:
            op = by_op[row["communicator"], row["rank"], row["seq"], row["channel"]]
            row.update(ts_ns=op["ts_ns"], pid=op["pid"], host=op["host"], nic=self.nic(row, op["pid"]))
        # Those of ops of which something was measured.
        self.measured = [row for row in self.messages if any("messagesMeasured" in peer for peer in by_op[
            row["communicator"], row["rank"], row["seq"], row["channel"]]["peers"])]
        for row in self.ops + self.messages + self.calls:
            wall = None if self.offset is None else row["ts_ns"] + self.offset
            row.update(job=self.job_of(row["pid"]), wall_ns=wall, clock_offset_ns=self.offset)

    def nic(self, message, pid):
        """Name of the network device of a message's link."""
        links = "sends" if message["op"] == "SEND" else "receives"
        for nic in self.nics.get((message["communicator"], message["rank"], pid), []):
            if message["channel"] in nic[links].get(str(message["peer"]), []):
                return nic["name"] or f"{nic['net'] or 'network'} device {nic['dev']}"
        return None
