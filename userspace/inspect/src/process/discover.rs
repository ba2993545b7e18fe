//! Finds all processes of the node that have NCCL mapped, under any name.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};

use super::{
    identify::{Depth, Evidence, Identifier, Judge},
    library::{LibraryError, MappedLibrary},
    maps,
    mounts::NotAsked,
    read_text,
    running::{Process, ProcessError, is_kernel_thread},
};

/// Processes found in `/proc`.
#[derive(Debug, Default)]
pub struct Discovered {
    /// Processes that have NCCL mapped, in the order of their numbers.
    pub processes: Vec<Process>,
    /// Number of processes that may not be looked at ([`denied_remedy`]).
    pub denied: usize,
    /// Their numbers.
    pub denied_pids: Vec<u32>,
}

/// Most processes that are named where their number says most.
pub(crate) const MAX_NAMED: usize = 3;

/// Names some of so many processes, behind their number: ` (PID 7, 71, 72 …)`.
pub fn in_brackets(pids: &[u32], all: usize) -> String {
    let named: Vec<String> = pids.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    match named.len() {
        0 => String::new(),
        count => format!(" (PID {}{})", named.join(", "), if all > count { " …" } else { "" }),
    }
}

/// Says what to do about processes that may not be looked at. Root is refused too: without `CAP_SYS_PTRACE`,
/// for processes in user namespaces that are not ours or below it, and by security modules.
#[must_use]
pub fn denied_remedy() -> &'static str {
    let in_first_user_namespace = || {
        let map = read_text("/proc/self/uid_map").unwrap_or_default();
        map.split_whitespace().eq(["0", "0", "4294967295"])
    };
    if !rustix::process::geteuid().is_root() {
        "run as root"
    } else if in_first_user_namespace() {
        "root needs CAP_SYS_PTRACE, and a security module can refuse that, too"
    } else {
        "run on the host, with CAP_SYS_PTRACE: root is refused by user namespaces, too, and by security modules"
    }
}

/// A process that has NCCL mapped. In messages the process is left out, and the descriptors that hold its
/// libraries come beside it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sighting<P = Process, L = MappedLibrary> {
    pub process: P,
    /// Libraries, each file once, with the evidence that it is NCCL.
    pub libraries: Vec<(L, Evidence)>,
    /// Libraries that cannot be opened, with the reason.
    pub unopened: Vec<LibraryError>,
    /// A file that could be NCCL and was not asked for, and why; set where no library was found.
    pub not_asked: Option<String>,
    /// Set if not all of the process was looked at.
    pub unfinished: Option<Unfinished>,
}

impl<P, L> Sighting<P, L> {
    /// Tells whether there is something to say of the process.
    pub fn shows_something(&self) -> bool {
        !self.libraries.is_empty() || !self.unopened.is_empty() || self.not_asked.is_some()
    }
}

/// The part of a process that was not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unfinished {
    /// Some files: a further look goes on with them.
    Files,
    /// Some mappings: the process has more than are read.
    Mappings,
}

/// Error: the kernel does not let us look at a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denied;

/// Returns the numbers of all processes that our PID namespace shows, in ascending order.
///
/// # Errors
/// When `/proc` cannot be listed.
pub fn pids() -> io::Result<Vec<u32>> {
    let names = fs::read_dir(Path::new("/proc"))?.flatten().map(|entry| entry.file_name());
    let mut pids: Vec<u32> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// Looks for NCCL in a process: files that are NCCL, and files that NCCL is linked into statically. Gives
/// `None` if the process has none, or exited meanwhile.
///
/// This asks the file systems of the process, see `resolver`. At most `most` libraries are taken hold of.
///
/// # Errors
/// When the process may not be looked at.
pub(crate) fn look_for_nccl(
    pid: u32,
    most: usize,
    identifier: &mut Identifier,
    judge: &mut Judge<'_>,
) -> Result<Option<Sighting<(), MappedLibrary>>, Denied> {
    // Threads of the kernel are denied to users, too, and have nothing to see.
    let denied = || if is_kernel_thread(pid) { Ok(None) } else { Err(Denied) };
    let process = match Process::open(pid) {
        Ok(process) => process,
        Err(ProcessError::Denied(..)) => return denied(),
        Err(_) => return Ok(None),
    };
    let code = match maps::read_file_code(process.live_thread()) {
        Ok(code) => code,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return denied(),
        Err(_) => return Ok(None),
    };
    identifier.begin(&process);
    let (mut libraries, mut unopened) = (Vec::<(MappedLibrary, Evidence)>::new(), Vec::new());
    let (mut not_asked, mut is_full) = (None, false);
    let mut unfinished = code.is_cut.then_some(Unfinished::Mappings);
    let is_of = |error: &LibraryError, wanted: &Path| matches!(error, LibraryError::Open { path, .. } if path == wanted);
    for mapping in &code.mappings {
        let evidence = match identifier.evidence(&process, mapping, judge) {
            Ok(Some(evidence)) => evidence,
            Ok(None) => continue,
            Err(NotAsked::NotNow) => {
                unfinished = Some(Unfinished::Files);
                continue;
            }
            Err(why) => {
                let path = super::printable(&mapping.path.to_string_lossy());
                not_asked.get_or_insert_with(|| format!("`{path}` could be NCCL: {why}"));
                continue;
            }
        };
        match identifier.open(&process, mapping) {
            Ok(file) if libraries.iter().any(|(known, _)| known.id == file.id) => {}
            Ok(_) if libraries.len() >= most => is_full = true,
            Ok(file) => libraries.push((file, evidence)),
            // A library has many mappings. They all fail for the same reason.
            Err(_) if unopened.iter().any(|known| is_of(known, &mapping.path)) => {}
            Err(error) => unopened.push(LibraryError::Open { pid, path: mapping.path.clone(), error }),
        }
    }
    let not_asked = not_asked.filter(|_| libraries.is_empty() && unopened.is_empty());
    let unfinished = if is_full { Some(Unfinished::Mappings) } else { unfinished };
    let sighting = Sighting { process: (), libraries, unopened, not_asked, unfinished };
    Ok((sighting.shows_something() || unfinished.is_some()).then_some(sighting))
}

/// Tells whether the process has NCCL mapped, by its name or by what it exports. Asks as [`look_for_nccl`]
/// does.
///
/// # Errors
/// When the process may not be looked at, or has ended.
pub(crate) fn has_nccl(pid: u32, identifier: &mut Identifier, judge: &mut Judge<'_>) -> io::Result<bool> {
    let code = maps::read_file_code(pid)?;
    if code.mappings.is_empty() && !code.is_empty {
        return Ok(false);
    }
    let process = match Process::open(pid) {
        Ok(process) => process,
        Err(ProcessError::Denied(_, error)) => return Err(error),
        Err(_) => return Ok(false),
    };
    let files = match code.mappings {
        none if none.is_empty() && process.has_lost_its_first_thread() => {
            maps::read_file_code(process.live_thread())?.mappings
        }
        files => files,
    };
    identifier.begin(&process);
    Ok(files.iter().any(maps::Mapping::is_nccl)
        || files
            .iter()
            .any(|mapping| matches!(identifier.judge(&process, mapping, Depth::Exports, judge), Ok(Some(_)))))
}

#[cfg(test)]
mod tests {
    use super::{super::identify::evidence, *};

    #[test]
    fn processes_without_nccl_are_not_among_them() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (identifier, judge) =
            (&mut Identifier::default(), &mut |file, depth| Some(evidence(file, depth)));
        assert!(!has_nccl(child.id(), identifier, judge).unwrap());
        assert!(look_for_nccl(child.id(), 64, identifier, judge).unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
