//! Tries to read a file as the libraries of jobs are read: in the child that looks at them, through
//! `/proc/PID/map_files`.

use std::io;

use super::checks::{Finding, degraded, no, ok};
use inspect::{
    process::Process,
    resolver::{self, ResolverError},
};

/// Remedy where root is refused.
pub(super) const REFUSED: &str = "run outside of what confines this program (AppArmor, SELinux, a seccomp filter); where nothing does, report this with the whole output";

/// Reads the file that this program has mapped as its own code: it exists even where no job runs.
pub(super) fn own_program() -> Finding {
    judge(read_own_program())
}

fn read_own_program() -> Result<(), ResolverError> {
    let pid = std::process::id();
    let process = Process::open(pid).map_err(|error| ResolverError::Unavailable(error.to_string()))?;
    let mappings = resolver::maps(pid).map_err(ResolverError::Refused)?;
    let code = mappings.iter().find(|mapping| mapping.is_file_code());
    let code = code.ok_or_else(|| ResolverError::Unavailable("this program has no file".to_owned()))?;
    let program = resolver::open_mapping(&process, code)?;
    // Only read: no symbol is wanted.
    resolver::symbols(&program, None, Some(Vec::new())).map(drop)
}

pub(super) fn judge(read: Result<(), ResolverError>) -> Finding {
    match read {
        Ok(()) => ok("the helper process opens and reads them"),
        // Not refused by the kernel: a file system that ncclflow does not ask, or a file that was replaced.
        Err(ResolverError::Refused(why)) if why.raw_os_error().is_none() => degraded(
            format!("not known, as this program's own file was not read: {why}"),
            "see the libraries below",
        ),
        Err(why) => no(
            format!("the helper process cannot read this program's own file, so no library either: {why}"),
            REFUSED,
        ),
    }
}

/// Tells whether the kernel refused it, and not a rule of ncclflow's.
pub(super) fn is_refused(error: &io::Error) -> bool {
    error.raw_os_error().is_some() && error.kind() == io::ErrorKind::PermissionDenied
}
