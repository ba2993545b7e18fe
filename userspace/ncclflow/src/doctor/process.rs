//! `doctor -p`: what may be done to one process, what not, and why.

use super::report::{Check, degraded, no, ok};
use flow::{session::Level, text::joined};
use inspect::{
    process::{Process, denied_remedy, no_return_probes, printable, read_text, status_field},
    resolver::{self, Unseen, What},
};
use nccl_library::{elf::RuntimeAddr, symbols::DebugFiles};
use trace::kernel::probe::compile;

/// Returns the checks of a process. It is looked at and not touched: no probe is tried, and 8 bytes of its
/// memory are read.
pub(super) fn checks(pid: u32) -> Vec<Check> {
    let process = match Process::open(pid) {
        Ok(process) => process,
        Err(error) => {
            let remedy = "give the PID of a running process: ncclflow ps";
            return vec![no(error.to_string(), remedy).named("process")];
        }
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
    let nothing = |found: String, remedy| vec![no(found, remedy).named("NCCL")];
    let sighting = match resolver::look_through(pid) {
        Ok(Some(sighting)) => sighting,
        Ok(None) => {
            let found = "it has no NCCL library mapped, under any name".to_owned();
            return nothing(found, "the process that loads NCCL: `ncclflow ps`");
        }
        Err(Unseen::Denied) => {
            let found = "its mappings may not be read".to_owned();
            return nothing(found, "run as root, in the host's PID namespace");
        }
        Err(Unseen::Unanswered(error)) => return nothing(error.to_string(), "nothing is done to it"),
    };
    let unopened = sighting.unopened.iter().map(ToString::to_string).chain(sighting.not_asked);
    let unopened = unopened.map(|why| no(why, "see the capabilities above, or --allow-fuse").named("NCCL"));
    let judge = |(library, _): &(inspect::process::MappedLibrary, inspect::process::Evidence)| {
        match resolver::resolve(library, What::Api, &DebugFiles::default()) {
            Err(error) => no(format!("{}: {error}", library.shown()), "another copy of the library"),
            Ok(resolved) => {
                let levels = [Level::Api, Level::Flow, Level::Steps].into_iter();
                let can =
                    levels.filter(|level| !compile(&resolved.resolution, *level, None).probes.is_empty());
                let can = joined(can.map(Level::name), ", ");
                let path = library.shown();
                if can.is_empty() {
                    no(format!("{path}: nothing of it can be probed"), "`ncclflow symbols` says why")
                } else {
                    ok(format!("{path}: probes can be attached, for --level {can}"))
                }
            }
        }
        .named("NCCL")
    };
    sighting.libraries.iter().map(judge).chain(unopened).collect()
}

fn memory(process: &Process) -> Check {
    use inspect::memory::{AddressSpace, Memory, ReadError};
    // The remedy has a line of its own.
    let refused = |error: ReadError| {
        let said = error.to_string();
        let what = said.strip_suffix(denied_remedy()).map_or(&*said, |said| said.trim_end_matches(": "));
        no(what, denied_remedy())
    };
    let space = match AddressSpace::read(process) {
        Ok(space) => space,
        Err(error) => return refused(error),
    };
    let Some(region) = space.regions.first() else {
        return no("it has no memory that could be read", "nothing: it is ending");
    };
    match Memory::new(process).word(RuntimeAddr(region.start)) {
        Ok(_) => ok("its memory can be read"),
        Err(error) => refused(error),
    }
}
