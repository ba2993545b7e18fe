//! Contents of recordings, for those who chose a part that is empty.

use std::collections::BTreeSet;

use flow::text::name_ranks;

use super::view::listed;
use crate::sources::Source;

/// Most communicators and processes that are named.
const MAX_NAMED: usize = 8;

/// Says which ranks, communicators and processes recordings have; `None`: no communicator is known.
pub(super) fn recorded(sources: &[Source]) -> Option<String> {
    let all = || sources.iter().flat_map(|source| &source.session().communicators);
    let ranks: BTreeSet<i32> = all().map(|row| row.rank).collect();
    let communicators: BTreeSet<&str> = all().map(|row| &*row.comm_hash).collect();
    let pids: BTreeSet<u32> = all().map(|row| row.pid).collect();
    (!ranks.is_empty()).then(|| {
        format!(
            "recorded: {} of {}, by {} {}",
            name_ranks(&ranks.into_iter().collect::<Vec<_>>()),
            listed(communicators.iter(), MAX_NAMED),
            if pids.len() == 1 { "process" } else { "processes" },
            listed(pids.iter(), MAX_NAMED)
        )
    })
}

#[cfg(test)]
mod tests {
    use flow::session::SessionReport;
    use serde_json::json;

    use super::*;

    #[test]
    fn ranks_communicators_and_processes_are_named() {
        let source = |communicators: &[(&str, i32, u32)]| {
            let row = |of: &(&str, i32, u32)| {
                let (hash, rank, pid) = of;
                json!({ "commHash": hash, "folder": hash, "rank": rank, "pid": pid })
            };
            let report = json!({ "communicators": communicators.iter().map(row).collect::<Vec<_>>() });
            Source {
                path: "flows".into(),
                session: SessionReport::parse(&report.to_string()),
                span_ns: None,
                bytes: 0,
                is_over: true,
                clock: None,
            }
        };
        let sources = [source(&[("0xab", 0, 7), ("0xcd", 0, 7)]), source(&[("0xab", 1, 8)])];
        let expected = "recorded: ranks 0, 1 of 0xab, 0xcd, by processes 7, 8";
        assert_eq!(recorded(&sources).as_deref(), Some(expected));
        assert_eq!(recorded(&[source(&[])]), None);
    }
}
