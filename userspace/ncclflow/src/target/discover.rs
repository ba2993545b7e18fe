//! All processes of the node that have NCCL mapped, under any name.

use std::{fs, io, path::Path};

use super::{
    identify::{Depth, Evidence, Identifier},
    library::{LibraryError, MappedLibrary},
    maps,
    process::{Process, ProcessError, is_kernel_thread},
};

/// What was found in `/proc`.
#[derive(Debug, Default)]
pub struct Discovered {
    /// In the order of their numbers.
    pub processes: Vec<Process>,
    /// Processes that may not be looked at ([`denied_remedy`]).
    pub denied: usize,
}

/// What to do about processes that may not be looked at. Root is refused too: without `CAP_SYS_PTRACE`, for
/// processes in user namespaces that are not ours or below it, and by security modules.
#[must_use]
pub fn denied_remedy() -> &'static str {
    if rustix::process::geteuid().is_root() {
        "look from the host, with CAP_SYS_PTRACE: root is refused by user namespaces, too, and by security modules"
    } else {
        "run as root"
    }
}

/// A process that has NCCL mapped.
#[derive(Debug)]
pub struct Sighting {
    pub process: Process,
    /// Each inode once, with what shows that it is NCCL.
    pub libraries: Vec<(MappedLibrary, Evidence)>,
    /// Libraries that cannot be opened, and why.
    pub unopened: Vec<LibraryError>,
}

/// The kernel does not let us look at a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied;

/// The numbers of all processes that our PID namespace shows, in ascending order.
///
/// # Errors
/// When `/proc` cannot be listed.
pub fn pids() -> io::Result<Vec<u32>> {
    let names = fs::read_dir(Path::new("/proc"))?.flatten().map(|entry| entry.file_name());
    let mut pids: Vec<u32> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// Looks through all processes that our PID namespace shows. NCCL that is linked statically into a program is
/// not looked for.
///
/// # Errors
/// When `/proc` cannot be listed.
pub fn nccl_processes() -> io::Result<Discovered> {
    let mut found = Discovered::default();
    let mut identifier = Identifier::default();
    for pid in pids()?.into_iter().filter(|pid| *pid != std::process::id()) {
        match look_at(pid, &mut identifier) {
            Ok(Some(process)) => found.processes.push(process),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_kernel_thread(pid) => {
                found.denied += 1;
            }
            // It has no NCCL, or it exited while we looked.
            Ok(None) | Err(_) => {}
        }
    }
    Ok(found)
}

/// Looks for NCCL in a process: files that are NCCL, and files that NCCL is linked into statically. `None`:
/// the process has none, or it exited meanwhile.
///
/// # Errors
/// When it may not be looked at.
pub fn look_for_nccl(pid: u32, identifier: &mut Identifier) -> Result<Option<Sighting>, Denied> {
    // What the kernel runs for itself is denied to users, too, and has nothing to see.
    let denied = || if is_kernel_thread(pid) { Ok(None) } else { Err(Denied) };
    let process = match Process::open(pid) {
        Ok(process) => process,
        Err(ProcessError::Denied(..)) => return denied(),
        Err(_) => return Ok(None),
    };
    let mappings = match maps::read(pid) {
        Ok(mappings) => mappings,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return denied(),
        Err(_) => return Ok(None),
    };
    let (mut libraries, mut unopened) = (Vec::<(MappedLibrary, Evidence)>::new(), Vec::new());
    let is_of = |error: &LibraryError, wanted: &Path| matches!(error, LibraryError::Open { path, .. } if path == wanted);
    for mapping in mappings.iter().filter(|mapping| mapping.is_file_code()) {
        let Some(evidence) = identifier.evidence(&process, mapping) else { continue };
        match MappedLibrary::open(&process, mapping) {
            Ok(file) if libraries.iter().any(|(known, _)| known.id == file.id) => {}
            Ok(file) => libraries.push((file, evidence)),
            // A library has many mappings. They all fail for the same reason.
            Err(_) if unopened.iter().any(|known| is_of(known, &mapping.path)) => {}
            Err(error) => unopened.push(LibraryError::Open { pid, path: mapping.path.clone(), error }),
        }
    }
    let has_none = libraries.is_empty() && unopened.is_empty();
    Ok((!has_none).then_some(Sighting { process, libraries, unopened }))
}

/// The process, if it has NCCL mapped.
fn look_at(pid: u32, identifier: &mut Identifier) -> io::Result<Option<Process>> {
    let mappings = maps::read(pid)?;
    let files: Vec<_> = mappings.iter().filter(|mapping| mapping.is_file_code()).collect();
    if files.is_empty() {
        return Ok(None);
    }
    let process = match Process::open(pid) {
        Ok(process) => process,
        Err(ProcessError::Denied(_, error)) => return Err(error),
        Err(_) => return Ok(None),
    };
    let is_nccl = files.iter().any(|mapping| mapping.is_nccl())
        || files.iter().any(|mapping| identifier.judge(&process, mapping, Depth::Exports).is_some());
    Ok(is_nccl.then_some(process))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_without_nccl_are_not_among_them() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let found = nccl_processes().unwrap();
        assert!(found.processes.iter().all(|process| process.pid() != child.id()));
        assert!(look_for_nccl(child.id(), &mut Identifier::default()).unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
