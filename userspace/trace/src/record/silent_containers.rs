//! Containers whose file systems do not answer. They are not asked again, and a tenant with several of them
//! not at all: others do not pay for it.

use std::{collections::HashSet, thread::JoinHandle};

use super::container_flags::MountNamespace;
use inspect::{
    process::Tenant,
    unresponsive::{MAX_LEFT, Silent},
};

/// Silent containers of one tenant after which none of the tenant's is looked into.
const MAX_OF_TENANT: usize = 4;

pub(super) fn whose(tenant: Option<&Tenant>) -> String {
    tenant.map_or_else(|| "tenants that are not known".to_owned(), ToString::to_string)
}

/// Silent containers by tenant, each with the thread that waits for it.
#[derive(Debug, Default)]
pub(super) struct SilentContainers(Silent<(MountNamespace, JoinHandle<()>), Option<Tenant>, MAX_OF_TENANT>);

impl SilentContainers {
    /// Tells whether the container is not to be asked.
    pub(super) fn has(&self, namespace: MountNamespace, tenant: Option<&Tenant>) -> bool {
        self.too_many_wait() || self.0.has(|(known, _)| *known == namespace, &tenant.cloned())
    }

    /// Notes a container that did not answer; returns the message. `thread` waits for it.
    pub(super) fn add(
        &mut self,
        namespace: MountNamespace,
        pid: u32,
        tenant: Option<&Tenant>,
        thread: JoinHandle<()>,
    ) -> String {
        let owner = tenant.cloned();
        self.0.add((namespace, thread), owner.clone());
        let said = format!(
            "the flag file of the container of process {pid} (mount namespace {namespace}) is not looked at any more: \
             its file system does not answer"
        );
        if self.too_many_wait() {
            said + "; nor is that of any other container, as too many do not"
        } else if self.0.has_all_of(&owner) {
            let whose = whose(tenant);
            format!("{said}; nor is that of any other container of {whose}, as too many do not")
        } else {
            said
        }
    }

    /// Forgets tenants that have no traced process any more, and keep no thread waiting.
    pub(super) fn keep_only(&mut self, tenants: &HashSet<&Option<Tenant>>) {
        let waits = |(_, thread): &(MountNamespace, JoinHandle<()>)| !thread.is_finished();
        let waiting = self.0.iter().filter(|(container, _)| waits(container));
        let waiting: HashSet<Option<Tenant>> = waiting.map(|(_, tenant)| tenant.clone()).collect();
        self.0.keep_only(|(_, tenant)| tenants.contains(tenant) || waiting.contains(tenant));
    }

    /// Tells whether so many threads wait for file systems that no container is looked into.
    fn too_many_wait(&self) -> bool {
        self.0.iter().filter(|((_, thread), _)| !thread.is_finished()).count() >= MAX_LEFT
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Mutex, mpsc},
        thread,
        time::Duration,
    };

    use super::*;

    fn user(uid: u32) -> Tenant {
        Tenant::User(uid, format!("user{uid}"))
    }

    #[test]
    fn a_tenant_whose_containers_do_not_answer_costs_others_nothing_and_is_forgotten() {
        let (until, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let waiting = || {
            let wait = Arc::clone(&wait);
            thread::spawn(move || _ = wait.lock().unwrap().recv())
        };
        let mut silent = SilentContainers::default();
        let first = 1;
        for namespace in first..=MAX_OF_TENANT as u64 {
            assert!(!silent.has(namespace, Some(&user(1))));
            let said = silent.add(namespace, 7, Some(&user(1)), waiting());
            assert!(silent.has(namespace, Some(&user(1))));
            assert_eq!(said.contains("of user user1 (1)"), namespace == MAX_OF_TENANT as u64, "{said}");
        }
        assert!(silent.has(99, Some(&user(1))), "any other of this tenant");
        assert!(!silent.has(first, Some(&user(2))) && !silent.has(99, None), "others are asked");
        let others = HashSet::new();
        silent.keep_only(&others);
        assert!(
            silent.has(99, Some(&user(1))),
            "its processes have ended, and its file systems are still silent"
        );
        for more in MAX_OF_TENANT..MAX_LEFT {
            assert!(!silent.has(200, Some(&user(3))), "{more}");
            silent.0.add((100 + more as u64, waiting()), None);
        }
        assert!(silent.has(200, Some(&user(3))), "too many threads wait");
        drop(until);
        while silent.0.iter().any(|((_, thread), _)| !thread.is_finished()) {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!silent.has(200, Some(&user(3))), "they have ended");
        silent.keep_only(&others);
        assert!(!silent.has(first, Some(&user(1))), "it is forgotten");
    }
}
