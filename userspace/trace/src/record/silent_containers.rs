//! Containers whose file systems do not answer. They are not asked again before who asked has come back, and
//! then after growing pauses; a tenant with several of them not at all: others do not pay for it.

use std::{collections::HashSet, thread::JoinHandle, time::Instant};

use super::container_flags::MountNamespace;
use inspect::{
    process::Tenant,
    unresponsive::{Backoff, MAX_LEFT, Silent},
};

/// Silent containers of one tenant after which none of the tenant's is looked into.
const MAX_OF_TENANT: usize = 4;

pub(super) fn whose(tenant: Option<&Tenant>) -> String {
    tenant.map_or_else(|| "tenants that are not known".to_owned(), ToString::to_string)
}

/// Silent containers by tenant, each with the thread that waits for it.
#[derive(Debug, Default)]
pub(super) struct SilentContainers {
    silent: Silent<(MountNamespace, JoinHandle<()>), Option<Tenant>, MAX_OF_TENANT>,
    pauses: Backoff<MountNamespace>,
}

impl SilentContainers {
    /// Tells whether the container is not to be asked now. Those that have answered after all, however late,
    /// are forgiven once their pause is over.
    pub(super) fn has(&mut self, namespace: MountNamespace, tenant: Option<&Tenant>, now: Instant) -> bool {
        let Self { silent, pauses } = self;
        silent
            .keep_only(|((namespace, thread), _)| !thread.is_finished() || pauses.is_put_off(namespace, now));
        self.too_many_wait() || self.silent.has(|(known, _)| *known == namespace, &tenant.cloned())
    }

    /// Notes that the container has answered in time.
    pub(super) fn answered(&mut self, namespace: MountNamespace) {
        self.pauses.forget(&namespace);
    }

    /// Notes a container that did not answer; returns the message. `about`: it, and a process in it. `thread`
    /// waits for it.
    pub(super) fn add(
        &mut self,
        about: (MountNamespace, u32),
        tenant: Option<&Tenant>,
        thread: JoinHandle<()>,
        now: Instant,
    ) -> String {
        let ((namespace, pid), owner) = (about, tenant.cloned());
        self.pauses.put_off(namespace, now);
        self.silent.add((namespace, thread), owner.clone());
        let said = format!(
            "the flag file of the container of process {pid} (mount namespace {namespace}) is not looked at until its \
             file system, which has not answered, does"
        );
        if self.too_many_wait() {
            said + "; nor is that of any other container, as too many do not"
        } else if self.silent.has_all_of(&owner) {
            let whose = whose(tenant);
            format!("{said}; nor is that of any other container of {whose}, as too many do not")
        } else {
            said
        }
    }

    /// Forgets tenants that have no traced process any more, and keep no thread waiting.
    pub(super) fn keep_only(&mut self, tenants: &HashSet<&Option<Tenant>>) {
        let waits = |(_, thread): &(MountNamespace, JoinHandle<()>)| !thread.is_finished();
        let waiting = self.silent.iter().filter(|(container, _)| waits(container));
        let waiting: HashSet<Option<Tenant>> = waiting.map(|(_, tenant)| tenant.clone()).collect();
        self.silent.keep_only(|(_, tenant)| tenants.contains(tenant) || waiting.contains(tenant));
    }

    /// Tells whether so many threads wait for file systems that no container is looked into.
    fn too_many_wait(&self) -> bool {
        self.silent.iter().filter(|((_, thread), _)| !thread.is_finished()).count() >= MAX_LEFT
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
        let (mut silent, now) = (SilentContainers::default(), Instant::now());
        let first = 1;
        for namespace in first..=MAX_OF_TENANT as u64 {
            assert!(!silent.has(namespace, Some(&user(1)), now));
            let said = silent.add((namespace, 7), Some(&user(1)), waiting(), now);
            assert!(silent.has(namespace, Some(&user(1)), now));
            assert_eq!(said.contains("of user user1 (1)"), namespace == MAX_OF_TENANT as u64, "{said}");
        }
        assert!(silent.has(99, Some(&user(1)), now), "any other of this tenant");
        assert!(!silent.has(first, Some(&user(2)), now) && !silent.has(99, None, now), "others are asked");
        let others = HashSet::new();
        silent.keep_only(&others);
        assert!(
            silent.has(99, Some(&user(1)), now),
            "its processes have ended, and its file systems are still silent"
        );
        for more in MAX_OF_TENANT..MAX_LEFT {
            assert!(!silent.has(200, Some(&user(3)), now), "{more}");
            silent.silent.add((100 + more as u64, waiting()), None);
        }
        assert!(silent.has(200, Some(&user(3)), now), "too many threads wait");
        drop(until);
        while silent.silent.iter().any(|((_, thread), _)| !thread.is_finished()) {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!silent.has(200, Some(&user(3)), now), "they have ended");
        silent.keep_only(&others);
        assert!(!silent.has(first, Some(&user(1)), now), "it is forgotten");
    }

    #[test]
    fn one_that_answers_late_is_forgiven_and_asked_again_after_growing_pauses() {
        let come_back = || {
            let thread = thread::spawn(|| {});
            while !thread.is_finished() {
                thread::yield_now();
            }
            thread
        };
        let mut silent = SilentContainers::default();
        let (tenant, mut now) = (user(1), Instant::now());
        for pause in [1, 2, 4, 8] {
            let (other, waiting) = (silent.has(9, Some(&tenant), now), silent.has(1, Some(&tenant), now));
            assert!(!other && !waiting);
            silent.add((1, 7), Some(&tenant), come_back(), now);
            assert!(
                silent.has(1, Some(&tenant), now + Duration::from_secs(pause) / 2),
                "{pause} s are not over"
            );
            now += Duration::from_secs(pause);
        }
        // All of the tenant's were given up, and have come back.
        for namespace in 11..11 + MAX_OF_TENANT as u64 {
            silent.add((namespace, 7), Some(&tenant), come_back(), now);
        }
        assert!(
            silent.has(99, Some(&tenant), now)
                && !silent.has(99, Some(&tenant), now + Duration::from_secs(1))
        );
        silent.answered(1);
        silent.add((1, 7), Some(&tenant), come_back(), now);
        assert!(!silent.has(1, Some(&tenant), now + Duration::from_secs(1)), "it begins anew");
    }
}
