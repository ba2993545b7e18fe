//! Containers whose file systems do not answer. They are not asked again, and a tenant with several of them
//! not at all: others do not pay for it.

use std::{
    collections::{HashMap, HashSet},
    thread::JoinHandle,
};

use super::container_flags::MountNamespace;
use crate::target::Tenant;

/// Most threads that wait for file systems. While there are so many, no container is looked into.
const MAX_STUCK: usize = 64;

/// Silent containers of one tenant after which none of the tenant's is looked into.
const MAX_STUCK_OF_TENANT: usize = 4;

pub(super) fn whose(tenant: Option<&Tenant>) -> String {
    tenant.map_or_else(|| "tenants that are not known".to_owned(), ToString::to_string)
}

/// Silent containers by tenant.
#[derive(Debug, Default)]
pub(super) struct SilentContainers {
    of: HashMap<Option<Tenant>, HashSet<MountNamespace>>,
    /// Threads that wait for an answer, each with the tenant of its container.
    threads: Vec<(Option<Tenant>, JoinHandle<()>)>,
}

impl SilentContainers {
    /// Tells whether the container is not to be asked.
    pub(super) fn has(&mut self, namespace: MountNamespace, tenant: Option<&Tenant>) -> bool {
        self.threads.retain(|(_, thread)| !thread.is_finished());
        let silent = self.of.get(&tenant.cloned());
        self.threads.len() >= MAX_STUCK
            || silent.is_some_and(|silent| silent.len() >= MAX_STUCK_OF_TENANT || silent.contains(&namespace))
    }

    /// Notes a container that did not answer; returns the message. `thread` waits for it.
    pub(super) fn add(
        &mut self,
        namespace: MountNamespace,
        pid: u32,
        tenant: Option<Tenant>,
        thread: JoinHandle<()>,
    ) -> String {
        self.threads.push((tenant.clone(), thread));
        let said = format!(
            "the flag file of the container of process {pid} (mount namespace {namespace}) is not looked at any more: \
             its file system does not answer"
        );
        let whose = whose(tenant.as_ref());
        let silent = self.of.entry(tenant).or_default();
        silent.insert(namespace);
        if self.threads.len() >= MAX_STUCK {
            said + "; nor is that of any other container, as too many do not"
        } else if silent.len() >= MAX_STUCK_OF_TENANT {
            format!("{said}; nor is that of any other container of {whose}, as too many do not")
        } else {
            said
        }
    }

    /// Forgets tenants that have no traced process any more, and keep no thread waiting.
    pub(super) fn keep_only(&mut self, tenants: &HashSet<&Option<Tenant>>) {
        self.threads.retain(|(_, thread)| !thread.is_finished());
        let threads = &self.threads;
        let keeps_waiting = |tenant: &Option<Tenant>| threads.iter().any(|(of, _)| of == tenant);
        self.of.retain(|tenant, _| tenants.contains(tenant) || keeps_waiting(tenant));
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
        for namespace in first..=MAX_STUCK_OF_TENANT as u64 {
            assert!(!silent.has(namespace, Some(&user(1))));
            let said = silent.add(namespace, 7, Some(user(1)), waiting());
            assert!(silent.has(namespace, Some(&user(1))));
            assert_eq!(said.contains("of user user1 (1)"), namespace == MAX_STUCK_OF_TENANT as u64, "{said}");
        }
        assert!(silent.has(99, Some(&user(1))), "any other of this tenant");
        assert!(!silent.has(first, Some(&user(2))) && !silent.has(99, None), "others are asked");
        let others = HashSet::new();
        silent.keep_only(&others);
        assert!(
            silent.has(99, Some(&user(1))),
            "its processes have ended, and its file systems are still silent"
        );
        for more in MAX_STUCK_OF_TENANT..MAX_STUCK {
            assert!(!silent.has(200, Some(&user(3))), "{more}");
            silent.threads.push((None, waiting()));
        }
        assert!(silent.has(200, Some(&user(3))), "too many threads wait");
        drop(until);
        while silent.threads.iter().any(|(_, thread)| !thread.is_finished()) {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!silent.has(200, Some(&user(3))), "they have ended");
        silent.keep_only(&others);
        assert!(!silent.has(first, Some(&user(1))), "it is forgotten");
    }
}
