//! The probes of a session: stored, attached, armed, disarmed, counted, detached.

use flow::{
    session::{LinkKind, ProbePlace},
    wire::ProbeKind,
};
use std::{io, num::NonZeroU32, os::fd::BorrowedFd, path::Path, time::Instant};

use anyhow::{Context as _, Error, Result};
use ncclflow_common::{FetchPlan, MAX_PROBES, ProbeCounters, STACK_COOKIE, Walk};

use super::{
    buffer::Buffer,
    link::{Link, Place, Site, detach},
    object::LoadedObject,
    programs::Program,
};
use crate::kernel::probe::{Probe, WalkProgram};

/// A stored probe.
#[derive(Debug)]
pub struct ArmedProbe {
    /// Number that the probe's records carry, and index in [`Attachment::probes`].
    pub cookie: u32,
    pub function: String,
    pub symbol: String,
    pub place: ProbePlace,
    /// Name of the plan, if this is a plan that walking probes run and no probe itself.
    pub part: Option<&'static str>,
    /// Process that the probe is limited to. `None` for parts, and for all probes under `--all`, which serve
    /// all processes that use the library.
    pub pid: Option<u32>,
    /// Index of the library among the session's libraries.
    pub library: usize,
}

/// The probes of a session.
#[expect(missing_debug_implementations, reason = "aya's log has none")]
pub struct Attachment {
    pub object: LoadedObject,
    probes: Vec<ArmedProbe>,
    /// Links that are kept, with the index of their library where they are of a named process.
    links: Vec<(Option<usize>, Link)>,
    /// Time at which the first link was made.
    pub first_link: Option<Instant>,
}

impl Attachment {
    /// Loads the eBPF object. With `stacks`, call stacks are recorded; they have the first cookie.
    pub fn new(buffer: Buffer, links: LinkKind, development_log: bool, stacks: bool) -> Result<Self> {
        let object = LoadedObject::load(buffer, links, development_log, stacks)?;
        let stacks = stacks.then(|| ArmedProbe {
            cookie: STACK_COOKIE,
            function: "call stacks".to_owned(),
            symbol: String::new(),
            place: ProbePlace::Entry,
            part: Some("stack"),
            pid: None,
            library: 0,
        });
        Ok(Self { object, probes: stacks.into_iter().collect(), links: Vec::new(), first_link: None })
    }

    /// Stores the plans that a library's walking probe runs: the one that finds the lists, and those for
    /// nodes and rows. Each has a cookie and counters of its own; returns the first. `stored` is called for
    /// each plan in their order; if one cannot be stored, those before it keep their cookies.
    pub fn store_parts(
        &mut self,
        probe: &Probe,
        program: &WalkProgram,
        library: usize,
        mut stored: impl FnMut(&ProbeKind),
    ) -> Result<u32> {
        let first = self.next_cookie()?;
        for part in &program.parts {
            self.add(probe, &part.plan, Some(part.name), None, library)?;
            stored(&part.kind);
        }
        Ok(first)
    }

    /// Stores a probe's plan under a new cookie. `first_part` is the first cookie of the plans of its walk,
    /// `pid` the only process to which the probe will be attached.
    pub fn store(
        &mut self,
        probe: &Probe,
        first_part: Option<u32>,
        library: usize,
        pid: Option<NonZeroU32>,
    ) -> Result<u32> {
        if let (Some(program), Some(first)) = (&probe.walk, first_part) {
            self.object.set_walk(self.next_cookie()?, &stored_walk(&program.walk, first)?)?;
        }
        self.add(probe, &probe.plan, None, pid, library)
    }

    /// Stores a plan under a new cookie.
    fn add(
        &mut self,
        probe: &Probe,
        plan: &FetchPlan,
        part: Option<&'static str>,
        pid: Option<NonZeroU32>,
        library: usize,
    ) -> Result<u32> {
        let cookie = self.next_cookie()?;
        self.object.set_plan(cookie, plan)?;
        self.probes.push(ArmedProbe {
            cookie,
            function: probe.function.clone(),
            symbol: probe.symbol.clone(),
            place: probe.place(),
            part,
            pid: pid.map(NonZeroU32::get),
            library,
        });
        Ok(cookie)
    }

    /// Attaches stored probes, with their cookies, to the file that `held` has open, or else to the inode
    /// behind `path`: in one process, or in all that have it mapped now and later. They stay attached while
    /// the links live, and send nothing before the session is open. If the kernel refuses a probe, none is
    /// attached.
    pub fn link(
        &mut self,
        probes: &[(&Probe, u32)],
        path: &Path,
        held: Option<BorrowedFd<'_>>,
        pid: Option<NonZeroU32>,
    ) -> Result<Vec<Link>> {
        let site = Site { path, held, pid };
        let of_each = Program::ALL.map(|program| {
            let of_it = probes.iter().filter(|(probe, _)| program_of(probe) == program);
            (program, of_it.copied().collect::<Vec<_>>())
        });
        let needed = of_each.iter().filter(|(_, probes)| !probes.is_empty());
        self.object.load_programs(&needed.clone().map(|(program, _)| *program).collect::<Vec<_>>())?;
        let mut links = Vec::new();
        for (program, probes) in needed {
            let places: Vec<Place> =
                probes.iter().map(|(probe, cookie)| (probe.file_offset.0, *cookie)).collect();
            match self.object.link(*program, site, &places) {
                Ok(made) => {
                    links.extend(made);
                    self.first_link.get_or_insert_with(Instant::now);
                }
                Err((at, why)) => {
                    detach(links, |_| {});
                    let said = refusal(probes.get(at).map(|(probe, _)| *probe), site, &why);
                    return Err(why.context(said));
                }
            }
        }
        Ok(links)
    }

    /// Keeps links until [`Attachment::detach`]; those to a library, by its index, also until
    /// [`Attachment::take_of`].
    pub fn keep(&mut self, library: Option<usize>, links: impl IntoIterator<Item = Link>) {
        self.links.extend(links.into_iter().map(|link| (library, link)));
    }

    /// Takes back the links to a library that were kept.
    pub fn take_of(&mut self, library: usize) -> Vec<Link> {
        self.links.extract_if(.., |(of, _)| *of == Some(library)).map(|(_, link)| link).collect()
    }

    fn next_cookie(&self) -> Result<u32> {
        let cookie = u32::try_from(self.probes.len()).ok().filter(|cookie| *cookie < MAX_PROBES);
        cookie.with_context(|| {
            format!("more than {MAX_PROBES} probes would be needed: trace fewer processes in one session")
        })
    }

    /// Returns the stored probes, by cookie.
    pub fn probes(&self) -> &[ArmedProbe] {
        &self.probes
    }

    /// Returns what the eBPF side counted for a probe, by CPU.
    pub fn counters(&self, probe: &ArmedProbe) -> Result<Vec<ProbeCounters>> {
        let per_cpu = self.object.counters(probe.cookie);
        per_cpu.with_context(|| format!("reading the counters of the probe on `{}`", probe.function))
    }

    /// Returns the number of cookies that are left.
    pub fn cookies_left(&self) -> usize {
        (MAX_PROBES as usize).saturating_sub(self.probes.len())
    }

    /// Detaches all probes, see [`detach`].
    pub fn detach(&mut self, before_each: impl FnMut(usize)) {
        let links = std::mem::take(&mut self.links).into_iter().map(|(_, link)| link);
        detach(links.collect(), before_each);
    }
}

fn program_of(probe: &Probe) -> Program {
    let program = match probe.place() {
        ProbePlace::Return => Program::Return,
        ProbePlace::Entry if probe.walk.is_some() => Program::Walk,
        ProbePlace::Entry => Program::Fetch,
    };
    if probe.takes_stack { program.with_stack() } else { program }
}

/// Says that the kernel refused a probe, and what to do about it.
fn refusal(probe: Option<&Probe>, Site { path, pid, .. }: Site<'_>, why: &Error) -> String {
    let function = probe.map_or("", |probe| &probe.function);
    let whose = pid.map_or_else(|| "all processes".to_owned(), |pid| format!("process {pid}"));
    let remedy = remedy(why).map_or_else(String::new, |remedy| format!(" ({remedy})"));
    format!("the kernel refused a uprobe on `{function}` of `{}` in {whose}{remedy}", path.display())
}

/// Returns what helps against an error of attaching. What is short is another matter than what is forbidden.
fn remedy(why: &Error) -> Option<&'static str> {
    let number = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error)
    };
    Some(match why.chain().find_map(number)? {
        libc::EPERM | libc::EACCES => "run as root, or with CAP_SYS_ADMIN besides; `ncclflow doctor` tells",
        libc::EAGAIN => {
            "no thread can be started, and no event be made, now: pids.max of the control group, TasksMax of the unit, \
             ulimit -u"
        }
        libc::ENOMEM => "memory is short, of the host or of the control group",
        libc::EMFILE | libc::ENFILE => "descriptors are short: ulimit -n",
        _ => return None,
    })
}

/// Returns the walk with its plans' indices replaced by their cookies, the first of which is `first`.
fn stored_walk(walk: &Walk, first: u32) -> Result<Walk> {
    let mut walk = *walk;
    walk.head_plan += first;
    for queue in &mut walk.queues {
        queue.plan += first;
    }
    let first = u16::try_from(first).context("too many probes")?;
    for fan in walk.gates.iter_mut().flat_map(|gate| &mut gate.fans) {
        fan.first_plan += first;
    }
    Ok(walk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_told_apart_from_what_is_forbidden() {
        let site = Site { path: Path::new("/opt/libnccl.so.2"), held: None, pid: NonZeroU32::new(7) };
        let said = |number| {
            let why = Error::from(io::Error::from_raw_os_error(number)).context("attaching failed");
            refusal(None, site, &why)
        };
        assert!(said(libc::EPERM).contains("run as root") && said(libc::EACCES).contains("run as root"));
        for (number, words) in
            [(libc::EAGAIN, "pids.max"), (libc::ENOMEM, "memory is short"), (libc::EMFILE, "ulimit -n")]
        {
            let said = said(number);
            assert!(said.contains(words) && !said.contains("run as root"), "{said}");
        }
        let other = said(libc::EINVAL);
        assert!(other.ends_with("in process 7"), "{other}");
    }
}
