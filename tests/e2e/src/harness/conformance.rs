//! One library, one run: traced while it works, and what was written against the truth of that run.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{
    programs,
    world::{DEBUG_LOG, PLUGIN_LOG, TRANSFER_LOG, World},
};
use crate::{
    compare::{self, Findings},
    tracer::Trace,
    truth::{
        debug_log::DebugLog,
        pat_counts::{self, PatCount},
        pattern_calls,
        plugin::PluginTruth,
        transfer_log::TransferLog,
    },
};

/// The programs that take part.
#[derive(Debug)]
pub struct Programs {
    pub bed: PathBuf,
    pub patterns: PathBuf,
}

impl Programs {
    /// Those that cargo built beside us; `None` if one is missing, which is said.
    pub fn find() -> Option<Self> {
        programs::ncclflow().zip(programs::truth_profiler())?;
        Some(Self { bed: programs::bed()?, patterns: programs::patterns()? })
    }
}

/// A library, and where the programs that run it (not ncclflow) find its symbols, if it has none itself.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    pub library: &'a Path,
    pub symbols: Option<&'a Path>,
}

/// What there is to compare a run of the bed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Witnesses {
    /// NCCL's log, the emulated device, NCCL's profiler interface (2.23 and later).
    All,
    /// The log and the device.
    Device,
}

impl Programs {
    /// Every pattern, on a communicator that is made up. Counts calls of `SaveProxy`.
    pub fn patterns(&self, subject: Subject<'_>) -> Result<Findings> {
        // Nothing is launched, so there are no plans to be seen.
        let world = traced(&self.patterns, subject, "--truth {}/pattern-calls", "--probes per-call")?;
        let truth = pattern_calls::read(&world.path("pattern-calls"))?;
        Ok(compare::against_pattern_calls(&Trace::read(&world.out())?, &truth))
    }

    /// Launches without proxy ops, in made-up plans through NCCL's own functions. Gives what was launched,
    /// and the world with the recording.
    pub fn launches(&self, library: &Path) -> Result<(Vec<serde_json::Value>, World)> {
        let subject = Subject { library, symbols: None };
        let world = traced(&self.patterns, subject, "--launches --truth {}/launches", "--probes plan")?;
        let truth = std::fs::read_to_string(world.path("launches")).context("the truth")?;
        Ok((super::rows::lines(&truth), world))
    }

    /// What the library itself counts of PAT, of communicators with so many ranks on each node. Nothing is
    /// traced.
    pub fn pat_counts(&self, subject: Subject<'_>, local_ranks: u32) -> Result<Vec<PatCount>> {
        let folder = tempfile::tempdir()?;
        let truth = folder.path().join("truth");
        let mut command = Command::new(&self.patterns);
        command.arg("--library").arg(subject.library).arg("--truth").arg(&truth);
        command.arg("--pat").arg(local_ranks.to_string());
        if let Some(symbols) = subject.symbols {
            command.arg("--symbols").arg(symbols);
        }
        let ran = command.output().with_context(|| format!("starting `{}`", self.patterns.display()))?;
        if !ran.status.success() {
            bail!("the counting failed ({}): {}", ran.status, String::from_utf8_lossy(&ran.stderr));
        }
        pat_counts::read(&truth)
    }

    /// A job on the bed. Counts what each check counts, all together; and says which witnesses spoke: some
    /// releases (2.27.3) tell their profiler interface of no op at all.
    pub fn bed(
        &self,
        subject: Subject<'_>,
        mut witnesses: Witnesses,
        workload: &str,
    ) -> Result<(Findings, Witnesses)> {
        let plugin = if witnesses == Witnesses::All { PLUGIN_LOG } else { "" };
        let workload = format!("{DEBUG_LOG} {TRANSFER_LOG} {plugin} {workload}");
        let world = traced(&self.bed, subject, &workload, "")?;
        let trace = Trace::read(&world.out())?;
        let log = DebugLog::read_directory(&world.path("log"))?;
        let ranks = u32::try_from(trace.ranks.len())?;
        let transfers = TransferLog::read(&world.path("transfers"), ranks)?;
        let mut checks = vec![
            ("identity", compare::identity(&trace)),
            ("symmetry", compare::symmetry(&trace)),
            ("topology", compare::topology(&trace, &log)),
            ("transfers", compare::against_transfers(&trace, &transfers)),
        ];
        if witnesses == Witnesses::All {
            let truth = PluginTruth::read(&world.path("truth"))?;
            if truth.ranks.values().all(|rank| rank.ops.is_empty()) {
                witnesses = Witnesses::Device;
            } else {
                checks.push(("plugin", compare::against_plugin(&trace, &truth)));
            }
        }
        let mut findings = Findings::default();
        for (check, found) in checks {
            if found.compared == 0 {
                bail!("{check}: nothing was compared");
            }
            findings.compared += found.compared;
            findings
                .mismatches
                .extend(found.mismatches.iter().map(|mismatch| format!("{check}: {mismatch}")));
        }
        Ok((findings, witnesses))
    }
}

/// Attaches to the program while it waits, lets it go, and waits for both.
fn traced(program: &Path, subject: Subject<'_>, workload: &str, options: &str) -> Result<World> {
    let symbols = subject.symbols.map(|path| format!("--symbols {}", path.display())).unwrap_or_default();
    let world = World::try_with(program, subject.library, &format!("{symbols} {workload}"))?;
    let mut world = world.context("something is missing; see above")?;
    world.try_record_all(&format!("--strict {options}"))?;
    Ok(world)
}
