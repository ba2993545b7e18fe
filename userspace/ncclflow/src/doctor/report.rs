//! The report of all checks, and its text.

use std::io::{self, Write};

use serde::Serialize;

use super::{
    checks::{Check, Finding, Verdict},
    facts::Facts,
    files, kernel, libraries, privileges, process, trial,
};
use trace::kernel::loader::try_uprobe;

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    ncclflow: &'static str,
    schema: u32,
    /// The worst verdict of `checks`; or no, where one of `libraries` is.
    pub verdict: Verdict,
    pub checks: Vec<Check>,
    pub libraries: Vec<Check>,
    /// Permissions for one process, with `-p`. They do not count for the verdict.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub process: Vec<Check>,
}

/// Examines this host, tries a uprobe on this process, and examines the NCCL libraries; or, instead of these,
/// one process.
pub fn examine(pid: Option<u32>) -> Report {
    let facts = Facts::read();
    let mut checks = of_facts(&facts);
    checks.push(files::own_program().named("mapped files"));
    checks.extend(trial::checks(&try_uprobe()));
    let libraries = if pid.is_none() { libraries::checks(&facts) } else { Vec::new() };
    Report { process: pid.map(process::checks).unwrap_or_default(), ..Report::new(checks, libraries) }
}

pub(super) type NamedCheck = (&'static str, fn(&Facts) -> Finding);

pub(super) fn of_facts(facts: &Facts) -> Vec<Check> {
    let checks = kernel::CHECKS.into_iter().chain(privileges::CHECKS);
    checks.map(|(name, check)| check(facts).named(name)).collect()
}

impl Report {
    pub(super) fn new(checks: Vec<Check>, libraries: Vec<Check>) -> Self {
        // A degraded library does not affect others.
        let unusable = libraries.iter().filter(|check| check.verdict == Verdict::No);
        let verdict = checks.iter().chain(unusable).map(|check| check.verdict).max().unwrap_or(Verdict::Ok);
        Self {
            ncclflow: env!("CARGO_PKG_VERSION"),
            schema: 1,
            verdict,
            checks,
            libraries,
            process: Vec::new(),
        }
    }

    /// Prints a line for each check, with its remedy below.
    ///
    /// # Errors
    /// Those of writing.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let all = || self.checks.iter().chain(&self.libraries).chain(&self.process);
        let width = all().map(|check| check.name.len()).max().unwrap_or(0);
        for check in all() {
            writeln!(out, "{:8}  {:width$}  {}", check.verdict.name(), check.name, check.found)?;
            if let Some(remedy) = &check.remedy {
                writeln!(out, "{:8}  {:width$}  -> {remedy}", "", "")?;
            }
        }
        let says = match self.verdict {
            Verdict::Ok => "this host can trace",
            Verdict::Degraded => "this host can trace, but for what the lines above say",
            Verdict::No => "this host cannot trace as it is, or not as this user",
        };
        writeln!(out, "\n{says}")
    }
}
