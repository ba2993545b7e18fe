//! Decides which window is wanted, by the flag file where ncclflow sees it, and where traced processes see it
//! in their containers.
//!
//! One window is open at a time, for the processes of all flags that are there. So a flag that comes while a
//! window is open ends that window and begins one with more processes, and a flag that goes leaves one with
//! fewer. Our own flag is for all processes; others add nothing to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

use anyhow::Result;

use super::{
    container_flags::{ContainerFlags, ContainersWithFlag, FlagId, Member, MountNamespace},
    mailbox::EventSender,
    window_flag::FlagFile,
};

/// Processes that a window is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    All,
    /// The processes of these containers, by the flag files in them.
    Containers(BTreeMap<MountNamespace, FlagId>),
}

/// State of the flags.
#[derive(Debug, Default)]
pub(super) struct FlagsSeen {
    /// The window that is to be open.
    pub(super) wanted: Option<Scope>,
    /// Our own flag is there, and has not gone since the last look.
    own_stayed: bool,
    containers: ContainersWithFlag,
}

#[derive(Debug)]
pub(super) struct WindowFlags {
    /// Our own flag. Without it a window is always wanted.
    own: Option<OwnFlag>,
    /// Flags whose windows a limit has closed: they open none before they have gone.
    spent: BTreeMap<MountNamespace, FlagId>,
    containers: Option<ContainerFlags>,
}

#[derive(Debug)]
struct OwnFlag {
    path: PathBuf,
    file: FlagFile,
    /// Identity of the file when it was last there: containers can see the same file, and see it longer.
    id: Option<FlagId>,
    is_spent: bool,
}

impl WindowFlags {
    /// `path` is `None` for windows that are always wanted. Containers are looked into if `in_containers`.
    pub(super) fn watch(path: Option<&Path>, in_containers: bool, events: &EventSender) -> Result<Self> {
        let Some(path) = path else {
            return Ok(Self { own: None, spent: BTreeMap::new(), containers: None });
        };
        let file = FlagFile::watch(path)?;
        let containers = in_containers.then(|| ContainerFlags::watch(path, events)).transpose()?;
        let own = OwnFlag { path: path.to_owned(), file, id: None, is_spent: false };
        Ok(Self { own: Some(own), spent: BTreeMap::new(), containers })
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.own.as_ref().map(|own| own.file.fd())
    }

    /// Looks at the flags; `traced` returns the traced processes.
    pub(super) fn look(&mut self, traced: impl FnOnce() -> Vec<Member>) -> FlagsSeen {
        let Some(own) = &mut self.own else {
            return FlagsSeen { wanted: Some(Scope::All), own_stayed: true, ..FlagsSeen::default() };
        };
        let (has_gone, is_there) = (own.file.has_gone(), own.file.is_there());
        if is_there {
            own.id = FlagId::of_path(&own.path).ok().or(own.id);
        }
        own.is_spent &= is_there && !has_gone;
        let mut containers = ContainersWithFlag::new();
        if let Some(flags) = &mut self.containers {
            flags.look_for(traced());
            containers = flags.found();
            containers.retain(|_, flag| Some(flag.file) != own.id);
        }
        let is_same = |namespace: &_, id: &_| containers.get(namespace).is_some_and(|flag| flag.file == *id);
        self.spent.retain(|namespace, id| is_same(namespace, id));
        let fresh = containers.iter().filter(|(namespace, _)| !self.spent.contains_key(namespace));
        let fresh: BTreeMap<_, _> = fresh.map(|(namespace, flag)| (*namespace, flag.file)).collect();
        let wanted = match fresh.is_empty() {
            _ if is_there && !own.is_spent => Some(Scope::All),
            false => Some(Scope::Containers(fresh)),
            true => None,
        };
        FlagsSeen { wanted, own_stayed: is_there && !has_gone, containers }
    }

    /// Notes that a limit has closed the window that these flags had opened.
    pub(super) fn spend(&mut self, scope: &Scope) {
        match (scope, &mut self.own) {
            (Scope::All, Some(own)) => own.is_spent = true,
            (Scope::All, None) => {}
            (Scope::Containers(files), _) => self.spent.extend(files),
        }
    }
}

impl FlagsSeen {
    /// Returns flags in containers, without our own.
    #[cfg(test)]
    pub(super) fn of_containers(containers: ContainersWithFlag) -> Self {
        let files: BTreeMap<_, _> =
            containers.iter().map(|(namespace, flag)| (*namespace, flag.file)).collect();
        let wanted = (!files.is_empty()).then_some(Scope::Containers(files));
        Self { wanted, own_stayed: false, containers }
    }

    /// Tells whether this flag is there in this container.
    pub(super) fn has(&self, namespace: MountNamespace, file: FlagId) -> bool {
        self.containers.get(&namespace).is_some_and(|flag| flag.file == file)
    }

    /// Tells whether a flag that opened this window has gone, also if it is there again.
    pub(super) fn has_gone(&self, scope: &Scope) -> bool {
        match scope {
            Scope::All => !self.own_stayed,
            Scope::Containers(files) => files.iter().any(|(namespace, id)| !self.has(*namespace, *id)),
        }
    }

    /// Returns the traced processes of a window of some containers, by container.
    pub(super) fn members(&self, scope: &Scope) -> Option<BTreeMap<MountNamespace, BTreeSet<u32>>> {
        let Scope::Containers(files) = scope else { return None };
        let of = |namespace| self.containers.get(namespace).map(|flag| flag.pids.clone()).unwrap_or_default();
        Some(files.keys().map(|namespace| (*namespace, of(namespace))).collect())
    }
}
