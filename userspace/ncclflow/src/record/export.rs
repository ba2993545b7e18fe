//! Completes the folders of windows, beside the recording.

use std::sync::mpsc::Receiver;

use super::{
    live::Taken,
    recorder::Notice,
    results::write_results,
    takers::{Complaints, News},
};
use crate::sinks::{OutputDir, RankSummary, SessionReport, is_over_max_size};

/// A window that is over.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) taken: Taken,
    pub(super) report: SessionReport,
    /// When it was opened, Unix time in milliseconds: part of its files' names.
    pub(super) opened_ms: u64,
}

/// What was found out about windows after their accounts had been taken.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Exported {
    pub(super) aggregates_over_max_size: u64,
}

/// Completes windows until no more come.
pub(super) fn export(jobs: &Receiver<Job>, compress: bool, complaints: &Complaints) -> Exported {
    let mut exported = Exported::default();
    for Job { taken, mut report, opened_ms } in jobs {
        let say = |error: String| complaints.say(News::Failed(error));
        let summaries = taken.pipeline.files().summaries();
        let dir = taken.pipeline.files().dir().map(OutputDir::try_clone);
        let written = write_results(taken, &mut report, compress, &mut |notice| {
            if let Notice::WriteFailed(error) = notice {
                say(error.to_owned());
            }
        });
        if let Err(error) = written {
            say(format!("writing a window's results: {error:#}"));
        }
        exported.aggregates_over_max_size += report.loss.aggregates_over_max_size;
        let finish = |dir: std::io::Result<OutputDir>| {
            let dir = dir?;
            let linked = link_by_process(&dir, &summaries, opened_ms);
            // From here on it may have to make room for others.
            dir.complete();
            linked
        };
        match dir.map(finish) {
            Some(Err(error)) if !is_over_max_size(&error) => {
                say(format!("naming a window's files by their processes: {error}"));
            }
            _ => {}
        }
        complaints.tell_of_disk();
    }
    exported
}

/// Gives the one file of each rank a second name, by its process and the window: `flow_rank0_pid77_1755877674248.json`. Under these names the files
/// of many windows and hosts can lie in one folder.
fn link_by_process(dir: &OutputDir, ranks: &[RankSummary], opened_ms: u64) -> std::io::Result<()> {
    for rank in ranks {
        let folder = dir.open_subfolder(&rank.folder)?;
        let tag = format!("pid{}_{opened_ms}", rank.pid);
        let number = rank.rank;
        for (stem, extension) in [
            ("flow_rank", "json"),
            ("api_rank", "jsonl"),
            ("api_rank", "jsonl.gz"),
            ("megatrace_rank", "log"),
        ] {
            let name = format!("{stem}{number}.{extension}");
            match folder.link(&name, &format!("{stem}{number}_{tag}.{extension}")) {
                // Which of them there is depends on the level; large ones are not aggregated.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                linked => linked?,
            }
        }
    }
    Ok(())
}
