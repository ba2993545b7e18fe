//! A check's report for people.

use std::io::{self, Write};

use flow::schema::Outcome;

use super::communicator_check::{CheckReport, CommunicatorCheck};

pub fn write_check(report: &CheckReport, out: &mut dyn Write) -> io::Result<()> {
    let mut window = None;
    for communicator in &report.communicators {
        if communicator.window != window {
            window.clone_from(&communicator.window);
            writeln!(out, "{}:", window.as_deref().unwrap_or_default())?;
        }
        write_communicator(communicator, out)?;
    }
    report.notes.iter().try_for_each(|note| writeln!(out, "{note}"))?;
    let findings: usize = report.communicators.iter().map(|communicator| communicator.findings.len()).sum();
    match findings {
        0 => writeln!(out, "consistent"),
        1 => writeln!(out, "1 finding"),
        _ => writeln!(out, "{findings} findings"),
    }
}

fn write_communicator(check: &CommunicatorCheck, out: &mut dyn Write) -> io::Result<()> {
    let CommunicatorCheck {
        window: _,
        communicator,
        n_ranks,
        ranks,
        collectives,
        measured,
        findings,
        first_difference,
        verdict,
    } = check;
    writeln!(
        out,
        "communicator {communicator}: {} of {n_ranks} ranks recorded, {collectives} collectives",
        ranks.len()
    )?;
    if let Some(first) = first_difference {
        writeln!(out, "  first difference: {}", first.text)?;
    }
    for finding in findings {
        writeln!(out, "  ! {}", finding.text)?;
    }
    let not_known = measured.get(&Outcome::ProxyNotKnown).copied().unwrap_or(0);
    if not_known > 0 {
        writeln!(
            out,
            "  {not_known} ops (each channel counts) are sent by proxies of other processes (PXN) that are not recorded"
        )?;
    }
    if verdict.messages == 0 {
        let why = if measured.is_empty() {
            "messages were not measured (record --level steps)"
        } else if not_known > 0 {
            "what was measured does not tell"
        } else {
            "what its messages wait for is not known for their patterns"
        };
        return writeln!(out, "  who waits for whom: {why}");
    }
    let ms = |ns: u64| ns / 1_000_000;
    writeln!(out, "  waits, in ms of {} messages:", verdict.messages)?;
    for rank in &verdict.ranks {
        write!(out, "    rank {}: own GPU {}", rank.rank, ms(rank.own_gpu_ns))?;
        for (what, waits) in [("data of", &rank.for_data_ns), ("room at", &rank.for_slot_ns)] {
            for (peer, ns) in waits {
                write!(out, ", {what} {peer} {}", ms(*ns))?;
            }
        }
        writeln!(out)?;
    }
    if verdict.culprit.is_none() {
        writeln!(out, "  no rank and no link stands out")?;
    }
    Ok(())
}
