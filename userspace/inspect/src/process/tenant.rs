//! Tenant of a process, where something is shared out: its pod, its container, or its user.
//!
//! Control groups below these are of the tenant's own making, and one that makes many of them gets no more.

use std::{collections::HashMap, fmt};

use flow::identity::Container;

use super::description::Description;

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
        Self::new(description.container.as_ref(), description.uid, &description.user)
    }

    pub fn new(container: Option<&Container>, uid: u32, user: &str) -> Self {
        match container {
            Some(Container { pod: Some(pod), .. }) => Self::Pod(pod.clone()),
            Some(container) => Self::Container(container.clone()),
            None => Self::User(uid, user.to_owned()),
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

/// The tenants of the processes that are traced, each with a number.
#[derive(Debug, Default)]
pub struct Tenants {
    known: HashMap<Tenant, Known>,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    number: u32,
    processes: usize,
}

impl Tenants {
    /// Counts a process of this tenant that is traced from now on. Returns the tenant's number.
    pub fn join(&mut self, tenant: Tenant) -> u32 {
        let next = &mut self.next;
        let known = self.known.entry(tenant).or_insert_with(|| {
            // The upper half is for processes whose tenant is not known.
            *next = (*next + 1) & (u32::MAX >> 1);
            Known { number: *next, processes: 0 }
        });
        known.processes += 1;
        known.number
    }

    /// Counts off a process of the tenant with this number that has ended.
    pub fn leave(&mut self, number: u32) {
        if let Some(known) = self.known.values_mut().find(|known| known.number == number) {
            known.processes = known.processes.saturating_sub(1);
        }
        if self.known.len() > MAX_FORMER {
            let is_former = |known: &Known| known.processes == 0;
            let oldest = self.known.values().filter(|known| is_former(known)).map(|known| known.number).min();
            if let Some(oldest) = oldest {
                self.known.retain(|_, known| known.number != oldest);
            }
        }
    }

    /// Returns the number of processes of the tenant with this number.
    pub fn processes(&self, number: u32) -> usize {
        self.known.values().find(|known| known.number == number).map_or(0, |known| known.processes)
    }

    /// Returns the tenant with this number, if it is remembered.
    pub fn get(&self, number: u32) -> Option<&Tenant> {
        self.known.iter().find(|(_, known)| known.number == number).map(|(tenant, _)| tenant)
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
        let of = |container| {
            let description =
                Description { uid: 1000, user: "ann".into(), container, ..Description::default() };
            Tenant::of(&description).to_string()
        };
        assert_eq!(of(Some(container(Some("1-2")))), "pod 1-2");
        assert_eq!(of(Some(container(None))), "container containerd:0123456789ab");
        assert_eq!(of(None), "user ann (1000)");
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
