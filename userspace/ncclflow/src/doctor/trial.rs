//! Judges the trial of a uprobe on this process, which shows whether all requirements together are met.

use std::{io, iter, time::Duration};

use super::report::{Check, degraded, no, ok};
use flow::session::LinkKind;
use trace::kernel::loader::{Program, Trial, TrialError};

/// Duration above which a hit slows small launches down.
const SLOW_HIT: Duration = Duration::from_micros(20);

/// Returns a check of the uprobe, one for each program that the kernel refused, and the least capabilities.
pub(super) fn checks(outcome: &Result<Trial, TrialError>) -> Vec<Check> {
    let refused = outcome.iter().flat_map(|trial| &trial.refused);
    let refused = refused.map(|(program, said)| without(*program, said).named("eBPF programs"));
    let least = outcome.iter().map(|trial| ok(least_capabilities(trial.links)).named("least capabilities"));
    iter::once(uprobe(outcome).named("uprobe")).chain(refused).chain(least).collect()
}

/// Returns capabilities with which everything works on this kernel, also `--all`.
fn least_capabilities(links: LinkKind) -> &'static str {
    match links {
        LinkKind::Multi => {
            "CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH, CAP_CHECKPOINT_RESTORE (uprobe_multi: no CAP_SYS_ADMIN)"
        }
        // CAP_SYS_ADMIN stands for three of them.
        LinkKind::Perf => "CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH",
    }
}

fn without(program: Program, said: &str) -> Check {
    match program {
        Program::Walk => degraded(
            format!(
                "the plans of kernel launches, which --level flow and steps read, cannot be read: \
                     {said}"
            ),
            "use --probes per-call, which slows launches down, or --level api; and report this with the \
             whole output",
        ),
        Program::Return => degraded(
            format!("returns cannot be seen: {said}"),
            "use --level api without --returns; and report this with the whole output",
        ),
        Program::FetchWithStack | Program::WalkWithStack => degraded(
            format!("call stacks cannot be recorded: {said}"),
            "record without --stacks; and report this with the whole output",
        ),
        // Without it the trial fails.
        Program::Fetch => no(said, "report this with the whole output"),
    }
}

fn uprobe(outcome: &Result<Trial, TrialError>) -> Check {
    match outcome {
        Ok(trial) if trial.counted != trial.made => no(
            format!("of {} hits {} were counted", trial.made, trial.counted),
            "report this with the whole output",
        ),
        Ok(trial) => {
            let hit = trial.hit.as_nanos();
            let found = format!(
                "{}.{:02} µs a hit, {} hits tried; loading took {} ms, attaching {} ms, detaching {} ms; {}",
                hit / 1000,
                hit % 1000 / 10,
                trial.made,
                trial.load.as_millis(),
                trial.attach.as_millis(),
                trial.detach.as_millis(),
                match trial.links {
                    LinkKind::Multi => "one kernel link for many probes (uprobe_multi)",
                    LinkKind::Perf =>
                        "a kernel link for each probe (no uprobe_multi): attaching and \
                                       detaching take that long for each",
                }
            );
            if trial.hit > SLOW_HIT {
                let remedy = "trace with --level api or flow; virtual machines without hardware assistance are slow here";
                return degraded(found, remedy);
            }
            ok(found)
        }
        Err(TrialError::Load(error)) => {
            no(format!("the eBPF object does not load: {error:#}"), "run as root; see the lines above")
        }
        Err(TrialError::Attach(error)) if error.kind() == io::ErrorKind::PermissionDenied => no(
            format!("the eBPF object loads, but the kernel refuses uprobes: {error}"),
            "CAP_SYS_ADMIN besides: kernels since July 2025 want it where they have no uprobe_multi (6.16, and 6.15.7, 6.12.39, 6.6.99, 6.1.146, 5.15.189: \
             the fix of CVE-2025-38466)",
        ),
        Err(TrialError::Attach(error)) => {
            no(format!("the kernel refuses uprobes: {error}"), "see the lines above")
        }
        Err(TrialError::Other(error)) => no(format!("{error:#}"), "report this with the whole output"),
    }
}
