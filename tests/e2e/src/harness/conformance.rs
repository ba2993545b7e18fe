//! One library, one run: traced while it works, and what was written against the truth of that run.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{bed::Bed, programs, recorder::Recorder};
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
    pub ncclflow: PathBuf,
    pub bed: PathBuf,
    pub patterns: PathBuf,
    pub profiler: PathBuf,
}

impl Programs {
    /// Those that cargo built beside us; `None` if one is missing, which is said.
    pub fn find() -> Option<Self> {
        Some(Self {
            ncclflow: programs::ncclflow()?,
            bed: programs::bed()?,
            patterns: programs::patterns()?,
            profiler: programs::truth_profiler()?,
        })
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
    ///
    /// # Errors
    /// If a program fails, or anything was lost.
    pub fn patterns(&self, subject: Subject<'_>) -> Result<Findings> {
        let folder = tempfile::tempdir()?;
        let truth = folder.path().join("truth");
        let truth_argument = truth.display().to_string();
        let mut arguments = vec!["--truth", &truth_argument];
        let symbols = subject.symbols.map(|path| path.display().to_string());
        arguments.extend(symbols.iter().flat_map(|path| ["--symbols", path]));
        // Nothing is launched, so there are no plans to be seen.
        let out =
            self.traced(&self.patterns, subject, folder.path(), &arguments, &["--probes", "per-call"])?;
        Ok(compare::against_pattern_calls(&Trace::read(&out)?, &pattern_calls::read(&truth)?))
    }

    /// What the library itself counts of PAT, of communicators with so many ranks on each node. Nothing is
    /// traced.
    ///
    /// # Errors
    /// If the program fails.
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
    ///
    /// # Errors
    /// If a program fails, or anything was lost.
    pub fn bed(
        &self,
        subject: Subject<'_>,
        mut witnesses: Witnesses,
        arguments: &[&str],
    ) -> Result<(Findings, Witnesses)> {
        let folder = tempfile::tempdir()?;
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("truth"))?;
        fs::create_dir(path("log"))?;
        let (transfers, log) =
            (path("transfers").display().to_string(), path("log/%p").display().to_string());
        let mut all = vec!["--debug-file", &log, "--transfer-log", &transfers];
        let plugin = [
            format!("NCCL_PROFILER_PLUGIN={}", self.profiler.display()),
            format!("NCCLFLOW_TRUTH_DIR={}", path("truth").display()),
        ];
        if witnesses == Witnesses::All {
            all.extend(plugin.iter().flat_map(|variable| ["--env", variable]));
        }
        let symbols = subject.symbols.map(|path| path.display().to_string());
        all.extend(symbols.iter().flat_map(|path| ["--symbols", path]));
        all.extend(arguments);
        let out = self.traced(&self.bed, subject, folder.path(), &all, &[])?;

        let trace = Trace::read(&out)?;
        let log = DebugLog::read_directory(&path("log"))?;
        let ranks = u32::try_from(trace.ranks.len())?;
        let transfers = TransferLog::read(&path("transfers"), ranks)?;
        let mut checks = vec![
            ("identity", compare::identity(&trace)),
            ("symmetry", compare::symmetry(&trace)),
            ("topology", compare::topology(&trace, &log)),
            ("transfers", compare::against_transfers(&trace, &transfers)),
        ];
        if witnesses == Witnesses::All {
            let truth = PluginTruth::read(&path("truth"))?;
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

    /// Attaches to the program while it waits, lets it go, and waits for both. Gives the recording.
    fn traced(
        &self,
        program: &Path,
        subject: Subject<'_>,
        folder: &Path,
        arguments: &[&str],
        options: &[&str],
    ) -> Result<PathBuf> {
        let mut job = Bed::start(program, subject.library, folder, arguments)?;
        let out = folder.join("out");
        let strict = [&["--strict"], options].concat();
        let recorder = Recorder::start(&self.ncclflow, &job.pid_list(), &out, &strict)?;
        job.go()?;
        let (status, summary) = job.finish().context("waiting for the job")?;
        if !status.success() || !summary.ok {
            let errors = fs::read_to_string(folder.join("bed.err")).unwrap_or_default();
            bail!("the job failed under the tracer ({status}): {summary:?} {errors}");
        }
        let (status, said) = recorder.finish()?;
        if !status.success() {
            bail!("ncclflow ended with {status}: {said}");
        }
        Ok(out)
    }
}
