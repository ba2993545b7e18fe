//! The programs of the object, loaded on first use, and the errors of those that the kernel refuses.

use std::{collections::HashMap, fmt, io, thread};

use anyhow::{Context as _, Result, anyhow};
use aya::{
    Ebpf,
    programs::{self, ProgramError, UProbe},
};

/// The programs of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Runs a fetch plan at an instruction.
    Fetch,
    /// Runs a fetch plan at a function's return.
    Return,
    /// Walks lists.
    Walk,
    /// Runs a fetch plan at an instruction, after it has sent the thread's call stack.
    FetchWithStack,
    /// Walks lists, after it has sent the thread's call stack.
    WalkWithStack,
}

impl Program {
    pub(super) const ALL: [Self; 5] =
        [Self::Fetch, Self::Return, Self::Walk, Self::FetchWithStack, Self::WalkWithStack];

    /// Returns the program that also takes call stacks, where there is one.
    #[must_use]
    pub fn with_stack(self) -> Self {
        match self {
            Self::Fetch | Self::FetchWithStack => Self::FetchWithStack,
            Self::Walk | Self::WalkWithStack => Self::WalkWithStack,
            Self::Return => Self::Return,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Fetch => "fetch_record",
            Self::Return => "fetch_return",
            Self::Walk => "walk",
            Self::FetchWithStack => "fetch_with_stack",
            Self::WalkWithStack => "walk_with_stack",
        }
    }

    /// Finds the program in the object.
    pub(super) fn find(self, ebpf: &mut Ebpf) -> Result<&mut UProbe, ProgramError> {
        ebpf.program_mut(self.name()).ok_or(ProgramError::NotLoaded)?.try_into()
    }
}

/// Loads the programs that are not loaded yet, each in a thread of its own: verifying one takes milliseconds.
pub(super) fn load(ebpf: &mut Ebpf, wanted: &[Program]) -> Result<()> {
    let mut all: HashMap<&str, &mut programs::Program> = ebpf.programs_mut().collect();
    let mut missing = Vec::new();
    for name in wanted.iter().map(|program| program.name()) {
        let program = all.remove(name).with_context(|| format!("the eBPF object has no program `{name}`"))?;
        let program: &mut UProbe = program.try_into()?;
        if program.fd().is_err() {
            missing.push((name, program));
        }
    }
    let load =
        |(name, program): (&'static str, &mut UProbe)| program.load().map_err(|error| refusal(name, error));
    let mut missing = missing.into_iter();
    let Some(first) = missing.next() else { return Ok(()) };
    thread::scope(|scope| {
        let others = missing.map(|other| thread::Builder::new().spawn_scoped(scope, move || load(other)));
        let others: Vec<_> = others.collect::<Result<_, _>>().context("starting a thread")?;
        let mut outcome = load(first);
        for other in others {
            outcome =
                outcome.and(other.join().map_err(|_| anyhow!("loading an eBPF program failed")).flatten());
        }
        outcome
    })
}

/// Error: the kernel refused a program.
#[derive(Debug)]
struct LoadError {
    error: io::Error,
    /// The last lines of the verifier's log.
    log: String,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BPF_PROG_LOAD failed")?;
        if !self.log.is_empty() {
            write!(f, "; the end of the verifier's log:\n{}\n", self.log)?;
        }
        Ok(())
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Adds the program's name to its error, and a hint at what may help.
fn refusal(name: &str, error: ProgramError) -> anyhow::Error {
    const LINES: usize = 20;
    let (is_denied, error) = match error {
        ProgramError::LoadError { io_error: error, verifier_log } => {
            // The verifier says EACCES.
            let is_denied = error.raw_os_error() == Some(libc::EPERM);
            let log = if is_denied { String::new() } else { verifier_log.to_string() };
            let lines: Vec<&str> = log.lines().collect();
            let log = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join("\n");
            (is_denied, LoadError { error, log }.into())
        }
        error => (false, anyhow::Error::from(error)),
    };
    let hint = match name {
        _ if is_denied => " (run as root)",
        "fetch_with_stack" | "walk_with_stack" => " (without --stacks it is not needed)",
        "walk" => " (`ncclflow record --probes per-call` does without it)",
        _ => "",
    };
    error.context(format!("the kernel refused the eBPF program `{name}`{hint}"))
}

#[cfg(test)]
mod tests {
    use aya_obj::VerifierLog;

    use super::*;

    fn said(name: &str, error: i32) -> String {
        let log: Vec<String> = (1..=30).map(|line| format!("line {line}")).collect();
        let verifier_log = VerifierLog::new(log.join("\n"));
        let io_error = io::Error::from_raw_os_error(error);
        format!("{:#}", refusal(name, ProgramError::LoadError { io_error, verifier_log }))
    }

    #[test]
    fn a_refusal_has_the_end_of_the_verifiers_log() {
        let last: Vec<String> = (11..=30).map(|line| format!("line {line}")).collect();
        assert_eq!(
            said("walk", libc::EACCES),
            format!(
                "the kernel refused the eBPF program `walk` \
                 (`ncclflow record --probes per-call` does without it): \
                 BPF_PROG_LOAD failed; the end of the verifier's log:\n{}\n: Permission denied (os error 13)",
                last.join("\n")
            )
        );
        assert_eq!(
            said("walk", libc::EPERM),
            "the kernel refused the eBPF program `walk` (run as root): BPF_PROG_LOAD failed: \
             Operation not permitted (os error 1)"
        );
    }
}
