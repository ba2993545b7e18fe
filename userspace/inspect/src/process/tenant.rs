//! Tenant of a process, where something is shared out: its pod, its container, or its user.
//!
//! Which of them is told by names that root gave (`cgroup`). Control groups below are of the tenant's own
//! making: one that makes many of them, or gives them another's name, gets no more and is nobody else.

use std::{collections::BTreeMap, fmt};

use flow::identity::{Container, SessionUser};

use super::description::{Description, Users, holder};
use crate::proc_text::{read_text, real_uid};

/// A user, container or pod that gets a share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Tenant {
    /// A pod of Kubernetes, by its UID.
    Pod(String),
    Container(Container),
    /// A user, by number and name.
    User(u32, String),
}

impl Tenant {
    pub fn of(description: &Description) -> Self {
        let Description { container, session_user, uid, user, .. } = description;
        Self::new(container.as_ref(), session_user.as_ref(), (*uid, user))
    }

    /// Reads the tenant of a process or thread, to be compared with that of another: users have their numbers
    /// as names. `None`: it has ended, or has no user.
    pub(crate) fn read(pid: u32) -> Option<Self> {
        let text = |file: &str| read_text(format!("/proc/{pid}/{file}")).ok();
        let (uid, users) = (real_uid(&text("status")?)?, Users::default());
        let (container, session) = holder(&text("cgroup").unwrap_or_default(), uid, &users);
        Some(Self::new(container.as_ref(), session.as_ref(), (uid, &users.name(uid))))
    }

    /// `user`: number and name of the process's own user.
    pub fn new(container: Option<&Container>, session: Option<&SessionUser>, user: (u32, &str)) -> Self {
        match (container, session) {
            (Some(Container { pod: Some(pod), .. }), _) => Self::Pod(pod.clone()),
            (Some(container), _) => Self::Container(container.clone()),
            (None, Some(SessionUser { uid, user })) => Self::User(*uid, user.clone()),
            (None, None) => Self::User(user.0, user.1.to_owned()),
        }
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(uid) => write!(f, "pod {uid}"),
            Self::Container(container) => write!(f, "container {}", container.short()),
            Self::User(uid, name) => write!(f, "user {name} ({uid})"),
        }
    }
}

/// Most tenants that are remembered after their last process has ended.
const MAX_FORMER: usize = 256;

/// The tenants of the processes that are traced, by number.
#[derive(Debug, Default)]
pub struct Tenants {
    known: BTreeMap<u32, Known>,
    next: u32,
}

#[derive(Debug)]
struct Known {
    tenant: Tenant,
    processes: usize,
}

impl Tenants {
    /// Counts a process of this tenant that is traced from now on. Returns the tenant's number.
    pub fn join(&mut self, tenant: Tenant) -> u32 {
        let known = self.known.iter_mut().find(|(_, known)| known.tenant == tenant);
        if let Some((number, known)) = known {
            known.processes += 1;
            return *number;
        }
        // The upper half is for processes whose tenant is not known.
        self.next = (self.next + 1) & (u32::MAX >> 1);
        self.known.insert(self.next, Known { tenant, processes: 1 });
        self.next
    }

    /// Counts off a process of the tenant with this number that has ended.
    pub fn leave(&mut self, number: u32) {
        if let Some(known) = self.known.get_mut(&number) {
            known.processes = known.processes.saturating_sub(1);
        }
        if self.known.len() > MAX_FORMER {
            let oldest = self.known.iter().find(|(_, known)| known.processes == 0).map(|(number, _)| *number);
            oldest.map(|oldest| self.known.remove(&oldest));
        }
    }

    /// Returns the number of processes of the tenant with this number.
    pub fn processes(&self, number: u32) -> usize {
        self.known.get(&number).map_or(0, |known| known.processes)
    }

    /// Returns the tenant with this number, if it is remembered.
    pub fn get(&self, number: u32) -> Option<&Tenant> {
        self.known.get(&number).map(|known| &known.tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_stand_for_their_containers_and_users_for_the_rest() {
        let container = |pod: Option<&str>| Container {
            runtime: "containerd".into(),
            id: "0123456789abcdef".into(),
            pod: pod.map(Into::into),
        };
        let described =
            |container| Description { uid: 1000, user: "ann".into(), container, ..Description::default() };
        let of = |container| Tenant::of(&described(container)).to_string();
        assert_eq!(of(Some(container(Some("1-2")))), "pod 1-2");
        assert_eq!(of(Some(container(None))), "container containerd:0123456789ab");
        assert_eq!(of(None), "user ann (1000)");
        // Root of a container of bob's own.
        let session_user = Some(SessionUser { uid: 1001, user: "bob".into() });
        let in_session = Description { session_user, ..described(None) };
        assert_eq!(Tenant::of(&in_session).to_string(), "user bob (1001)");
    }

    #[test]
    fn after_a_hundred_thousand_tenants_as_many_are_known_as_after_a_thousand() {
        let mut tenants = Tenants::default();
        let lasting = tenants.join(Tenant::User(1, "one".into()));
        for uid in 1000..101_000 {
            let number = tenants.join(Tenant::User(uid, uid.to_string()));
            assert_eq!(tenants.join(Tenant::User(uid, uid.to_string())), number);
            tenants.leave(number);
            tenants.leave(number);
        }
        assert!(tenants.known.len() <= MAX_FORMER + 1, "{}", tenants.known.len());
        assert_eq!(tenants.get(lasting), Some(&Tenant::User(1, "one".into())), "it has a process");
    }
}
