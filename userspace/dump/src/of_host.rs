//! Reports of single hosts, which are put together to one of all, and hosts that gave none.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use flow::text::{joined, write_paragraph};

/// Names that are shown of hosts with one reason; all are in the JSON.
const SHOWN: usize = 8;

/// A host that was asked and gave no report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostNotRead {
    /// Name by which it was asked.
    pub host: String,
    pub why: String,
}

/// Groups hosts by reason: `h1, h2: no answer within 60 s`. The reason of most hosts comes first.
pub fn grouped(hosts: &[HostNotRead]) -> Vec<String> {
    let mut by: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for HostNotRead { host, why } in hosts {
        by.entry(why).or_default().push(host);
    }
    let mut by: Vec<(&str, Vec<&str>)> = by.into_iter().collect();
    by.sort_by_key(|(_, hosts)| std::cmp::Reverse(hosts.len()));
    let line = |(why, hosts): (&str, Vec<&str>)| {
        let more = hosts.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more}: {why}", joined(hosts.into_iter().take(SHOWN), ", "))
    };
    by.into_iter().map(line).collect()
}

/// Writes a paragraph for each reason.
pub(crate) fn write(out: &mut dyn fmt::Write, hosts: &[HostNotRead]) -> fmt::Result {
    grouped(hosts).iter().try_for_each(|line| write_paragraph(out, &format!("not read: {line}"), 0))
}

/// A report that a host makes of itself: the JSON of a command.
pub trait OfHost: DeserializeOwned {
    /// Command that makes it.
    const COMMAND: &'static str;
    /// Version of its schema that is read.
    const SCHEMA: u32;

    /// Returns the host that everything in the report is of; `None` if there is no such host.
    fn host(&self) -> Option<&str>;
}

/// Returns `host` if it has a name and all are of it.
pub(crate) fn only<'h>(host: &'h str, mut all: impl Iterator<Item = &'h String>) -> Option<&'h str> {
    (!host.is_empty() && all.all(|other| other == host)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DumpReport, ProcessReport};

    #[test]
    fn hosts_with_one_reason_share_a_line() {
        let of = |host: &str, why: &str| HostNotRead { host: host.to_owned(), why: why.to_owned() };
        let mut all = vec![of("a", "refused"), of("b", "late"), of("c", "late")];
        assert_eq!(grouped(&all), ["b, c: late", "a: refused"]);
        all.extend((0..9).map(|number| of(&format!("n{number}"), "late")));
        assert_eq!(grouped(&all)[0], "b, c, n0, n1, n2, n3, n4, n5 and 3 more: late");
    }

    #[test]
    fn a_report_of_one_host_tells_of_no_other() {
        let process = |host: &str| ProcessReport { host: host.to_owned(), ..ProcessReport::default() };
        let mut report = DumpReport {
            hosts: vec!["a".to_owned()],
            processes: vec![process("a")],
            ..DumpReport::default()
        };
        assert_eq!(report.host(), Some("a"));
        report.processes.push(process("b"));
        assert_eq!(report.host(), None);
        assert_eq!(DumpReport { hosts: vec!["a".into(), "b".into()], ..DumpReport::default() }.host(), None);
        assert_eq!(DumpReport { hosts: vec![String::new()], ..DumpReport::default() }.host(), None);
        assert_eq!(DumpReport::default().host(), None);
    }
}
