//! A check's report for people: the verdict in one sentence, then what it is based on.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use flow::{
    schema::Outcome,
    text::{counted, spaced_seconds},
};

use super::communicator_check::{CheckReport, CommunicatorCheck, JobPart, NOTHING, SLOWNESS};
use crate::slow::RankWaits;

/// Most ranks whose waits are shown, those that waited longest; with `-v` all.
const MAX_RANKS: usize = 8;

/// Returns the result in one sentence: a difference between ranks, or else who holds the job back; of several
/// jobs, of the one with the worst.
pub fn headline(report: &CheckReport) -> String {
    let parts: Vec<JobPart<'_>> = report.parts().collect();
    let worst = parts.iter().filter_map(|part| Some((part.worst()?, part))).min_by_key(|(worst, _)| *worst);
    match (&parts[..], worst) {
        ([], _) => NOTHING.into(),
        ([part], _) => part.headline(),
        (_, Some((_, part))) => {
            let found = report.jobs.iter().filter(|job| !job.consistent).count();
            format!(
                "{found} of {} jobs have findings; first: {}: {}",
                parts.len(),
                part.name(),
                part.headline()
            )
        }
        (_, None) => format!("no problem found in {} jobs", parts.len()),
    }
}

impl JobPart<'_> {
    /// `job 77`.
    pub(crate) fn name(&self) -> String {
        self.job.map_or_else(|| "a job without a name".to_owned(), |job| format!("job {job}"))
    }

    /// Returns findings and faults, with their importance.
    fn differences(&self) -> Vec<(u8, &str)> {
        let findings = self.communicators.iter().flat_map(|check| &check.findings);
        let findings = findings.map(|finding| (finding.kind.importance(), finding.text.as_str()));
        let faults = self.slow.iter().flat_map(|slow| slow.faults());
        findings.chain(faults.map(|cause| (SLOWNESS, cause.text.as_str()))).collect()
    }

    /// Returns the importance of what matters most, if there is something.
    fn worst(&self) -> Option<u8> {
        self.differences().into_iter().map(|(importance, _)| importance).min()
    }

    /// Returns the verdict on the job in one sentence.
    pub(super) fn headline(&self) -> String {
        let (communicators, differences) = (by_name(self.communicators.iter().copied()), self.differences());
        let count = counted(communicators.len(), "communicator");
        match differences.iter().min_by_key(|(importance, _)| importance) {
            None => {
                let slow = self.slow.first().map(|slow| format!("; {}", slow.summary())).unwrap_or_default();
                format!("no problem found in {count}{}{slow}", missing_ranks(&communicators))
            }
            Some((_, first)) if differences.len() == 1 => format!("1 finding: {first}"),
            Some((_, first)) => format!("{} findings in {count}; first: {first}", differences.len()),
        }
    }

    /// Returns notes on clocks, and what was not seen, each once: windows have the same ones.
    fn notes(&self) -> Vec<String> {
        let clocks = self.slow.iter().flat_map(|slow| slow.clock_notes());
        let mut notes: Vec<String> =
            clocks.chain(self.slow.iter().flat_map(|slow| slow.lines_not_seen())).collect();
        let mut said = BTreeSet::new();
        notes.retain(|note| said.insert(note.clone()));
        notes
    }
}

/// A communicator in all windows: its size, and its ranks that were recorded.
pub(crate) struct Recorded {
    n_ranks: i32,
    ranks: BTreeSet<i32>,
}

/// Returns communicators by name: each window is checked by itself.
pub(crate) fn by_name<'c>(
    checks: impl IntoIterator<Item = &'c CommunicatorCheck>,
) -> BTreeMap<&'c str, Recorded> {
    let mut by_name: BTreeMap<&str, Recorded> = BTreeMap::new();
    for check in checks {
        let new = || Recorded { n_ranks: 0, ranks: BTreeSet::new() };
        let recorded = by_name.entry(&check.communicator).or_insert_with(new);
        recorded.n_ranks = recorded.n_ranks.max(check.n_ranks);
        recorded.ranks.extend(&check.ranks);
    }
    by_name
}

/// Writes the report, the headline first.
pub fn write_check(report: &CheckReport, is_verbose: bool, out: &mut dyn Write) -> io::Result<()> {
    let parts: Vec<JobPart<'_>> = report.parts().collect();
    for part in &parts {
        let said = part.headline();
        if parts.len() > 1 {
            writeln!(out, "{}: {said}", part.name())?;
        }
        part.slow.iter().try_for_each(|slow| slow.write(&said, out))?;
        part.notes().iter().try_for_each(|note| writeln!(out, "{note}"))?;
        let mut window = None;
        for communicator in &part.communicators {
            if communicator.window != window {
                window.clone_from(&communicator.window);
                writeln!(out, "{}:", window.as_deref().unwrap_or_default())?;
            }
            write_communicator(communicator, is_verbose, out)?;
        }
    }
    report.notes.iter().try_for_each(|note| writeln!(out, "{note}"))
}

/// Returns a note on ranks that were not recorded, where nothing was found.
fn missing_ranks(communicators: &BTreeMap<&str, Recorded>) -> String {
    let is_part = |of: &&Recorded| usize::try_from(of.n_ranks).is_ok_and(|n| of.ranks.len() < n);
    match communicators.values().filter(is_part).count() {
        0 => String::new(),
        1 if communicators.len() == 1 => ", of which not all ranks were recorded".to_owned(),
        parts => format!("; of {parts} of them, not all ranks were recorded"),
    }
}

fn write_communicator(check: &CommunicatorCheck, is_verbose: bool, out: &mut dyn Write) -> io::Result<()> {
    let CommunicatorCheck { communicator, n_ranks, collectives, measured, verdict, .. } = check;
    writeln!(
        out,
        "communicator {communicator}: {} of {n_ranks} ranks recorded, {}{}",
        check.ranks.len(),
        counted(usize::try_from(*collectives).unwrap_or(usize::MAX), "collective"),
        match check.launches {
            0 => String::new(),
            launches => format!(
                ", {launches} launches without proxy operations (symmetric memory, copy engines, one-sided), which \
                 are not compared: NCCL gives them no numbers"
            ),
        }
    )?;
    if let Some(first) = &check.first_difference {
        writeln!(out, "  first difference: {}", first.text)?;
    }
    for finding in &check.findings {
        writeln!(out, "  ! {}", finding.text)?;
    }
    let not_known = measured.get(&Outcome::ProxyNotKnown).copied().unwrap_or(0);
    if not_known > 0 {
        writeln!(
            out,
            "  {not_known} operations × channels are sent by a process that was not recorded, \
             through another GPU of the node (PXN)"
        )?;
    }
    if verdict.messages == 0 {
        let why = if measured.is_empty() {
            return Ok(());
        } else if not_known > 0 {
            "the messages were sent by processes that were not recorded"
        } else if measured.keys().all(|outcome| *outcome == Outcome::LeftOut) {
            "--steps-every, --channels or --min-bytes of the recording left them out"
        } else {
            "ncclflow does not know what messages of these algorithms wait for"
        };
        return writeln!(out, "  what messages waited for is not known: {why}");
    }
    write_waits(&verdict.ranks, verdict.messages, is_verbose, out)
}

fn write_waits(ranks: &[RankWaits], messages: u64, is_verbose: bool, out: &mut dyn Write) -> io::Result<()> {
    let mut shown: Vec<&RankWaits> = ranks.iter().collect();
    if !is_verbose && shown.len() > MAX_RANKS {
        shown.sort_by_key(|waits| std::cmp::Reverse(waits.own_gpu_ns.saturating_add(waits.waited())));
        shown.truncate(MAX_RANKS);
        shown.sort_by_key(|waits| waits.rank);
    }
    writeln!(
        out,
        "  what ranks waited for, summed over {messages} messages (messages overlap, so the sums exceed \
         the time that passed):"
    )?;
    for waits in &shown {
        write!(out, "    rank {}: own GPU {}", waits.rank, spaced_seconds(waits.own_gpu_ns))?;
        for (peer, ns) in &waits.for_data_ns {
            write!(out, "; sender or network (rank {peer}) {}", spaced_seconds(*ns))?;
        }
        for (peer, ns) in &waits.for_slot_ns {
            write!(out, "; receiver or network (rank {peer}) {}", spaced_seconds(*ns))?;
        }
        writeln!(out)?;
    }
    if shown.len() < ranks.len() {
        writeln!(out, "    (those that waited longest of {} ranks; -v shows all)", ranks.len())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        check::{Finding, FindingKind},
        slow::Slow,
    };

    fn check(findings: &[(FindingKind, &str)], ranks: Vec<i32>) -> CommunicatorCheck {
        let finding = |(kind, text): &(FindingKind, &str)| Finding {
            kind: *kind,
            seq: None,
            ranks: Vec::new(),
            text: (*text).to_owned(),
        };
        CommunicatorCheck {
            communicator: "0xab".to_owned(),
            n_ranks: 2,
            ranks,
            collectives: 1,
            findings: findings.iter().map(finding).collect(),
            ..CommunicatorCheck::default()
        }
    }

    fn headline_of(communicators: Vec<CommunicatorCheck>) -> String {
        headline(&CheckReport::new(Vec::new(), communicators, Vec::new(), Vec::new()))
    }

    #[test]
    fn the_headline_has_what_matters_most() {
        let unfinished = (FindingKind::Unfinished, "cut");
        let size = (FindingKind::SizeMismatch, "size");
        let differs = (FindingKind::CollectiveMismatch, "differs");
        assert_eq!(headline_of(vec![check(&[unfinished], vec![0, 1])]), "1 finding: cut");
        let second = CommunicatorCheck { communicator: "0xac".to_owned(), ..check(&[differs], vec![0, 1]) };
        let several = vec![check(&[unfinished, size], vec![0, 1]), second];
        assert_eq!(headline_of(several), "3 findings in 2 communicators; first: differs");
    }

    /// Of two jobs, each has its verdict, and the headline that of the worse one.
    #[test]
    fn each_job_has_a_verdict() {
        let of = |job: &str, check: CommunicatorCheck| CommunicatorCheck {
            job: Some(job.to_owned()),
            communicator: format!("0x{job}"),
            ..check
        };
        let differs = (FindingKind::CollectiveMismatch, "differs");
        let size = (FindingKind::SizeMismatch, "size");
        let communicators = vec![
            of("77", check(&[size], vec![0, 1])),
            of("78", check(&[differs], vec![0, 1])),
            of("79", check(&[], vec![0, 1])),
            of("77", check(&[], vec![0, 1])),
        ];
        let report = CheckReport::new(Vec::new(), communicators, Vec::new(), Vec::new());
        assert_eq!(headline(&report), "2 of 3 jobs have findings; first: job 78: 1 finding: differs");
        let jobs: Vec<(Option<&str>, bool, &str)> =
            report.jobs.iter().map(|of| (of.job.as_deref(), of.consistent, &*of.verdict)).collect();
        let expected = [
            (Some("77"), false, "1 finding: size"),
            (Some("78"), false, "1 finding: differs"),
            (Some("79"), true, "no problem found in 1 communicator"),
        ];
        assert_eq!(jobs, expected);
        let mut text = Vec::new();
        write_check(&report, false, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with(' ')).collect();
        let is_of = |line: &str, begin: &str| line.starts_with(begin);
        let begins = [
            "job 77: 1 ",
            "communicator 0x77",
            "communicator 0x77",
            "job 78: 1 ",
            "communicator 0x78",
            "job 79: no ",
            "communicator 0x79",
        ];
        assert!(
            lines.len() == begins.len() && lines.iter().zip(begins).all(|(line, begin)| is_of(line, begin)),
            "{text}"
        );
        // One job needs no heading.
        let one =
            CheckReport::new(Vec::new(), vec![of("77", check(&[], vec![0, 1]))], Vec::new(), Vec::new());
        assert_eq!(headline(&one), "no problem found in 1 communicator");
        let mut text = Vec::new();
        write_check(&one, false, &mut text).unwrap();
        assert!(text.starts_with(b"communicator 0x77"), "{}", String::from_utf8_lossy(&text));
    }

    #[test]
    fn nothing_found_is_no_praise_of_ranks_that_were_not_recorded() {
        assert_eq!(headline_of(vec![check(&[], vec![0, 1])]), "no problem found in 1 communicator");
        let part = headline_of(vec![check(&[], vec![1])]);
        assert_eq!(part, "no problem found in 1 communicator, of which not all ranks were recorded");
        let second = CommunicatorCheck { communicator: "0xac".to_owned(), ..check(&[], vec![0, 1]) };
        let two = headline_of(vec![check(&[], vec![1]), second]);
        assert!(two.ends_with("; of 1 of them, not all ranks were recorded"), "{two}");
        assert!(headline_of(Vec::new()).starts_with("nothing to check"));
    }

    /// A communicator in two windows is one, and what neither has seen is said once.
    #[test]
    fn windows_of_a_communicator_are_counted_once() {
        let window = |number: u8, ranks| CommunicatorCheck {
            window: Some(format!("window_{number}")),
            ..check(&[], ranks)
        };
        let slow = || Slow { not_seen: vec!["this".to_owned(), "that".to_owned()], ..Slow::default() };
        let communicators = vec![window(1, vec![0]), window(2, vec![1])];
        let note = "the same of both".to_owned();
        let notes = vec![note.clone(), note.clone()];
        let report = CheckReport::new(Vec::new(), communicators, vec![slow(), slow()], notes);
        assert!(
            headline(&report).starts_with("no problem found in 1 communicator;"),
            "{}",
            headline(&report)
        );
        let mut text = Vec::new();
        write_check(&report, false, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for line in ["not seen: this", "not seen: that", &note] {
            assert_eq!(text.lines().filter(|other| *other == line).count(), 1, "{line}: {text}");
        }
    }

    #[test]
    fn messages_that_the_recording_left_out_are_said_to_be() {
        let left_out =
            CommunicatorCheck { measured: BTreeMap::from([(Outcome::LeftOut, 7)]), ..check(&[], vec![0, 1]) };
        let mut text = Vec::new();
        write_communicator(&left_out, false, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("--min-bytes of the recording left them out\n"), "{text}");
    }

    #[test]
    fn of_many_ranks_those_are_shown_that_waited_longest() {
        let waits = |rank: i32| RankWaits {
            rank,
            own_gpu_ns: 1000,
            for_data_ns: BTreeMap::from([(0, u64::try_from(rank).unwrap() * 1_000_000)]),
            ..RankWaits::default()
        };
        let ranks: Vec<RankWaits> = (0..20).map(waits).collect();
        let text = |is_verbose| {
            let mut out = Vec::new();
            write_waits(&ranks, 5, is_verbose, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let short = text(false);
        assert!(short.contains("rank 19: own GPU 1 µs; sender or network (rank 0) 19.0 ms\n"), "{short}");
        assert!(!short.contains("rank 11:") && short.contains("of 20 ranks; -v"), "{short}");
        assert_eq!(text(true).lines().count(), 21);
    }
}
