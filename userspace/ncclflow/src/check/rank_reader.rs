//! Finds the ranks' files in the folders of recordings, and reads them line by line.

use std::{io::Read as _, path::Path};

use anyhow::{Context as _, Result};
use serde::{Deserialize, de::DeserializeOwned};

use crate::sinks::{OutputDir, for_each_line, for_each_rank};
use flow::schema::{ClockReport, MessageRow, OpRow};

const MAX_SESSION: u64 = 256 << 20;

#[derive(Debug, Deserialize)]
struct Session {
    host: Option<String>,
    clock: ClockReport,
}

/// The clock of what is in a folder.
#[derive(Clone, Debug)]
pub struct FolderClock {
    /// The host that it is of: lines of others can lie in the same folder. Nothing: all are of one host.
    host: Option<String>,
    pub clock: ClockReport,
}

impl FolderClock {
    /// Of a recording: all of it is of one host.
    pub fn of_recording(clock: ClockReport) -> Self {
        Self { host: None, clock }
    }

    /// Times of this host are of this clock.
    pub fn is_of(&self, host: &str) -> bool {
        self.host.as_deref().is_none_or(|own| own == host)
    }
}

#[derive(Debug)]
pub struct Recording {
    /// Of its lines. Without it the end of the session is not known, and nothing else is lost.
    pub clock: Option<FolderClock>,
    pub ranks: Vec<RankFile>,
}

#[derive(Debug)]
pub struct RankFile {
    /// The communicator's folder: its hash, and its number if there are several of that hash.
    pub folder: String,
    pub rank: i32,
    dir: OutputDir,
}

impl RankFile {
    pub fn flows(&self, each: impl FnMut(OpRow)) -> Result<()> {
        self.lines("proxy_flow", each)
    }

    pub fn steps(&self, each: impl FnMut(MessageRow)) -> Result<()> {
        self.lines("flow_steps", each)
    }

    fn lines<L: DeserializeOwned>(&self, kind: &str, mut each: impl FnMut(L)) -> Result<()> {
        let name = format!("{kind}_rank{}.jsonl", self.rank);
        // A recording that was killed leaves a last line without an end.
        for_each_line(&self.dir, &name, &mut 0, |_, line| {
            each(serde_json::from_str(line)?);
            Ok(())
        })
        .with_context(|| format!("in `{}`", self.dir.path().display()))
    }
}

/// Opens a folder. One that holds no rank's lines is an error.
pub(super) fn recording(path: &Path) -> Result<Recording> {
    let dir = OutputDir::open(path)?;
    let mut ranks = Vec::new();
    for_each_rank(&dir, |folder, subfolder, rank| {
        ranks.push(RankFile { folder: folder.to_owned(), rank, dir: subfolder.try_clone()? });
        Ok(())
    })?;
    Ok(Recording { clock: clock(&dir), ranks })
}

fn clock(dir: &OutputDir) -> Option<FolderClock> {
    let mut text = String::new();
    dir.open_file("session.json").ok()?.take(MAX_SESSION).read_to_string(&mut text).ok()?;
    let Session { host, clock } = serde_json::from_str(&text).ok()?;
    Some(FolderClock { host, clock })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use flow::{made::rows::op_row, schema::OpRow};

    use crate::check::{CheckReport, FindingKind, check};

    /// Lines of two ranks in one folder, whose `session.json` is of the host `a`. Rank 1 ran one collective, rank 0
    /// three, and the recording went on for long.
    fn checked(hosts: [&str; 2], session: Option<&str>) -> CheckReport {
        let folder = tempfile::tempdir().unwrap();
        if let Some(session) = session {
            fs::write(folder.path().join("session.json"), session).unwrap();
        }
        let lines = folder.path().join("0x0000000000000007");
        fs::create_dir(&lines).unwrap();
        for (rank, (host, collectives)) in (0..).zip(hosts.into_iter().zip([3, 1])) {
            let row = |seq: u64| OpRow {
                seq: seq * 2,
                rank,
                host: host.into(),
                n_ranks: 2,
                ts_ns: seq * 1000,
                ..op_row()
            };
            let text: String =
                (1..=collectives).map(|seq| serde_json::to_string(&row(seq)).unwrap() + "\n").collect();
            fs::write(lines.join(format!("proxy_flow_rank{rank}.jsonl")), text).unwrap();
            fs::write(lines.join(format!("flow_steps_rank{rank}.jsonl")), "").unwrap();
        }
        check(&[folder.path().to_path_buf()], &mut |_, _| {}).unwrap()
    }

    /// A host's clock says nothing of another host's times: their ranks are not said to have stayed away.
    #[test]
    fn times_of_hosts_without_a_clock_are_not_judged() {
        let session = r#"{"host":"a","clock":{"clock":"CLOCK_MONOTONIC","started_monotonic_ns":0,
            "started_realtime_ns":0,"offset_ns":0,"ended_monotonic_ns":9000000000}}"#;
        let findings = |report: &CheckReport| {
            let findings = report.communicators.iter().flat_map(|communicator| &communicator.findings);
            findings.map(|finding| finding.kind).collect::<Vec<_>>()
        };
        let one_host = checked(["a", "a"], Some(session));
        assert_eq!((findings(&one_host), &*one_host.notes), (vec![FindingKind::MissingJoin], &[][..]));
        let two_hosts = checked(["a", "b"], Some(session));
        assert_eq!(findings(&two_hosts), []);
        let [note] = &*two_hosts.notes else { panic!("{:?}", two_hosts.notes) };
        assert!(note.starts_with("the clock of b is not known"), "{note}");
        let without = checked(["a", "b"], None);
        assert_eq!(findings(&without), []);
        assert!(without.notes[0].starts_with("the clock of a, b is not known"), "{:?}", without.notes);
    }
}
