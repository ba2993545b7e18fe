//! Lines of a log into records: who said it, and what.
//!
//! A record looks like `host:pid:tid [device] NCCL INFO message`, with a time before it if the user
//! asked for one. When processes share a stream, a launcher may put its own prefix before it, and two
//! records can end up on one line.

const MARKER: &str = " NCCL INFO ";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub pid: u32,
    pub tid: u32,
    pub message: String,
}

/// The records of one line: none for foreign output, more than one where lines ran into each other.
pub fn records(line: &str) -> Vec<Record> {
    let heads: Vec<Head> =
        line.match_indices(MARKER).filter_map(|(marker, _)| Head::before(line, marker)).collect();
    let ends = heads.iter().skip(1).map(|head| head.start).chain([line.len()]);
    heads
        .iter()
        .zip(ends)
        .map(|(head, end)| Record {
            pid: head.pid,
            tid: head.tid,
            message: line[head.end..end].trim().to_owned(),
        })
        .collect()
}

/// `host:pid:tid [device] NCCL INFO `, from where to where.
struct Head {
    start: usize,
    end: usize,
    pid: u32,
    tid: u32,
}

impl Head {
    fn before(line: &str, marker: usize) -> Option<Self> {
        let (rest, device) = line[..marker].rsplit_once(' ')?;
        device.strip_prefix('[')?.strip_suffix(']')?.parse::<i32>().ok()?;
        let start = rest.rfind(' ').map_or(0, |space| space + 1);
        let mut parts = rest[start..].rsplit(':');
        let tid = parts.next()?.parse().ok()?;
        let pid = parts.next()?.parse().ok()?;
        parts.next()?;
        Some(Self { start, end: marker + MARKER.len(), pid, tid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(pid: u32, tid: u32, message: &str) -> Record {
        Record { pid, tid, message: message.to_owned() }
    }

    #[test]
    fn the_speaker_and_the_message_are_found() {
        assert_eq!(
            records("node-1:12:34 [0] NCCL INFO Ring 00 : 1 -> 0 -> 1"),
            [record(12, 34, "Ring 00 : 1 -> 0 -> 1")]
        );
        assert_eq!(records("[1,0]<stdout>: node:12:34 [-1] NCCL INFO x y"), [record(12, 34, "x y")]);
        assert_eq!(records("[2026-01-01 10:00:00] node:12:34 [7] NCCL INFO x"), [record(12, 34, "x")]);
    }

    #[test]
    fn two_records_on_one_line_are_two_records() {
        let line =
            "node:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> node:1:3 [1] NCCL INFO Ring 01 : 0 -> 1 -> 0";
        assert_eq!(
            records(line),
            [record(1, 2, "Channel 00/0 : 0[0] ->"), record(1, 3, "Ring 01 : 0 -> 1 -> 0")]
        );
    }

    #[test]
    fn other_output_is_nothing() {
        assert_eq!(records("node:1:2 [0] enqueue.cc:10 NCCL WARN Ring 01 : 0 -> 1 -> 0"), []);
        assert_eq!(records("step 10 NCCL INFO done"), []);
        assert_eq!(records(""), []);
    }
}
