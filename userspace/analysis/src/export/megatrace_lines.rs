//! Lines of the Megatrace interceptor, for tools that read them.
//!
//! As its `log_event` and its writer thread put them (its later versions put host, address and PCI id before,
//! and brackets around each field):
//!
//! ```text
//! [save_count 1] [1755877674.248008482] [Rank 0] Fun ncclAllReduce Data 25165824 stream 0x562a9d0b5020 opCount 8 groupHash -5956285979098587305
//! ```

use std::collections::HashMap;

use flow::schema::{ApiCallRow, Pointer, RankKey};

/// Streams whose calls are counted. A target that uses more wants to fill our memory; the calls on those have
/// number 0.
const MAX_STREAMS: usize = 65_536;

#[derive(Debug, Default)]
pub(super) struct MegatraceLines {
    /// Adds up with a record's time to wall time, nanoseconds.
    realtime_offset_ns: u64,
    /// Calls so far, by process and stream: what the interceptor prints as `opCount`.
    calls: HashMap<(u32, u64), u64>,
}

impl MegatraceLines {
    pub(super) fn new(realtime_offset_ns: u64) -> Self {
        Self { realtime_offset_ns, calls: HashMap::new() }
    }

    pub(super) fn line(&mut self, rank: RankKey, row: &ApiCallRow) -> String {
        let key = (row.pid, row.stream.0);
        let op_count = if self.calls.len() < MAX_STREAMS || self.calls.contains_key(&key) {
            let count = self.calls.entry(key).or_insert(0);
            *count += 1;
            *count
        } else {
            0
        };
        let time = row.ts_ns.saturating_add(self.realtime_offset_ns);
        let (seconds, nanoseconds) = (time / 1_000_000_000, time % 1_000_000_000);
        // Its readers take letters, digits and underscores.
        let name: String = row.function.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        // As C prints a pointer.
        let stream = match row.stream {
            Pointer(0) => "(nil)".to_owned(),
            Pointer(address) => format!("{address:#x}"),
        };
        format!(
            "[save_count 1] [{seconds}.{nanoseconds:09}] [Rank {}] Fun nccl{name} Data {} stream {stream} \
             opCount {op_count} groupHash {}",
            rank.rank,
            row.count,
            rank.hash.unwrap_or(0).cast_signed(),
        )
    }
}
