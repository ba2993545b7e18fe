//! `doctor -p`: what may be done to one process, what not, and why.

use super::checks::{Check, degraded, no, ok};
use flow::session::Level;
use inspect::{
    process::{Process, no_return_probes, printable, read_text, status_field},
    resolver::{self, Unseen, What},
};
use nccl_library::{elf::RuntimeAddr, symbols::DebugFiles};
use trace::kernel::probe::compile;

/// Returns the checks of a process. It is looked at and not touched: no probe is tried, and 8 bytes of its
/// memory are read.
pub(super) fn checks(pid: u32) -> Vec<Check> {
    let process = match Process::open(pid) {
        Ok(process) => process,
        Err(error) => return vec![no(error.to_string(), "another number").named("process")],
    };
    let found = format!("{pid} (`{}`)", printable(process.name()));
    let mut checks = vec![ok(found).named("process")];
    checks.extend(libraries(pid));
    checks.push(memory(&process).named("dump"));
    checks.push(
        match no_return_probes(pid) {
            None => ok("returns can be probed"),
            Some(why) => degraded(format!("no --returns: {why}"), "record without --returns"),
        }
        .named("--returns"),
    );
    let status = read_text(format!("/proc/{pid}/status")).unwrap_or_default();
    let filter = match status_field(&status, "Seccomp") {
        Some("0") => ok("no filter"),
        Some(mode) => ok(format!(
            "mode {mode}: probes on entries make no system call in it, so it does not matter to them"
        )),
        None => ok("not known"),
    };
    checks.push(filter.named("seccomp"));
    checks
}

fn libraries(pid: u32) -> Vec<Check> {
    let sighting = match resolver::look_through(pid) {
        Ok(Some(sighting)) => sighting,
        Ok(None) => {
            let found = "it has no NCCL library mapped, under any name";
            return vec![no(found, "the process that loads NCCL: `ncclflow ps`").named("NCCL")];
        }
        Err(Unseen::Denied) => {
            let found = "its mappings may not be read";
            return vec![no(found, "run as root, in the host's PID namespace").named("NCCL")];
        }
        Err(Unseen::Unanswered(error)) => {
            return vec![no(error.to_string(), "nothing is done to it").named("NCCL")];
        }
    };
    let unopened = sighting.unopened.iter().map(ToString::to_string).chain(sighting.not_asked);
    let unopened = unopened.map(|why| no(why, "see the capabilities above, or --allow-fuse").named("NCCL"));
    let judge = |(library, _): &(inspect::process::MappedLibrary, inspect::process::Evidence)| {
        let resolved = resolver::resolve(library, What::Api, &DebugFiles::default());
        match resolved {
            Err(error) => no(format!("{}: {error}", library.shown()), "another copy of the library"),
            Ok(resolved) => {
                let levels = [(Level::Api, "api"), (Level::Flow, "flow"), (Level::Steps, "steps")];
                let can = levels
                    .into_iter()
                    .filter(|(level, _)| !compile(&resolved.resolution, *level, None).probes.is_empty());
                let can: Vec<&str> = can.map(|(_, name)| name).collect();
                let found =
                    format!("{}: probes can be attached, for --level {}", library.shown(), can.join(", "));
                if can.is_empty() {
                    no(
                        format!("{}: nothing of it can be probed", library.shown()),
                        "`ncclflow symbols` says why",
                    )
                } else {
                    ok(found)
                }
            }
        }
        .named("NCCL")
    };
    sighting.libraries.iter().map(judge).chain(unopened).collect()
}

fn memory(process: &Process) -> super::checks::Finding {
    use inspect::memory::{AddressSpace, Memory};
    let space = match AddressSpace::read(process) {
        Ok(space) => space,
        Err(error) => return no(error.to_string(), "run as root, or with CAP_SYS_PTRACE"),
    };
    let Some(region) = space.regions.first() else {
        return no("it has no memory that could be read", "nothing: it is ending");
    };
    match Memory::new(process).word(RuntimeAddr(region.start)) {
        Ok(_) => ok("its memory can be read"),
        Err(error) => no(error.to_string(), "run as root, or with CAP_SYS_PTRACE"),
    }
}
