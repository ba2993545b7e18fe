//! Processor time of a process's threads between two looks: of those that may launch, which no probe tells,
//! and of NCCL's that move ops.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use inspect::process::{Process, ThrottleWatch, Throttled, read_text, run_times};

use crate::thread_roles::{self, Launching, MAX_THREADS};

/// Looks after which names of threads are read again: they can be set at any time.
const AGAIN_EVERY: u32 = 4;

/// Processor time of a process between two looks. Of several threads, that of the one that asked for most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    pub period: Duration,
    /// Time that a thread ran, and that it waited for a processor: the first thread, or one of PyTorch's for
    /// the backward pass. `None`: the kernel does not say.
    pub launching: Option<[Duration; 2]>,
    pub proxy: Option<[Duration; 2]>,
    pub throttled: Throttled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Launching,
    Proxy,
    Other,
}

/// The looks at a process.
#[derive(Debug, Default)]
pub struct ProcessorWatch {
    looks: u32,
    at: Option<Instant>,
    roles: BTreeMap<u32, Role>,
    launching: Launching,
    /// Handles of the threads that move ops, and the threads.
    proxies: (BTreeSet<u64>, BTreeSet<u32>),
    times: BTreeMap<u32, [u64; 2]>,
    throttled: ThrottleWatch,
}

impl ProcessorWatch {
    /// Looks at a process. `handles` returns those of its threads that move ops. `None` at the first look.
    pub(super) fn look(
        &mut self,
        process: &Process,
        handles: impl FnOnce() -> BTreeSet<u64>,
    ) -> Option<Growth> {
        if self.looks.is_multiple_of(AGAIN_EVERY) {
            self.roles.clear();
            self.launching = Launching::default();
            let handles = handles();
            if handles != self.proxies.0 {
                let threads = thread_roles::of_handles(process, &handles);
                self.proxies = (handles, threads);
            }
        }
        self.looks = self.looks.wrapping_add(1);
        let now = Instant::now();
        let mut growths = [None; 2];
        let mut times = BTreeMap::new();
        for tid in process.thread_ids().take(MAX_THREADS) {
            let read = |file: &str| read_text(process.task_path(tid).join(file)).ok();
            let (launching, proxies) = (&mut self.launching, &self.proxies.1);
            let role = *self.roles.entry(tid).or_insert_with(|| {
                let name = read("comm").unwrap_or_default();
                match launching.has(tid == process.pid(), name.trim_end()) {
                    _ if proxies.contains(&tid) => Role::Proxy,
                    true => Role::Launching,
                    false => Role::Other,
                }
            });
            let at = match role {
                Role::Launching => 0,
                Role::Proxy => 1,
                Role::Other => continue,
            };
            // A kernel without these counts says 0.
            let Some(time) =
                read("schedstat").and_then(|text| run_times(&text)).filter(|time| *time != [0, 0])
            else {
                continue;
            };
            times.insert(tid, time);
            // A new thread of the same number has less.
            let grown = self.times.get(&tid).and_then(|before| {
                Some(
                    [time[0].checked_sub(before[0])?, time[1].checked_sub(before[1])?]
                        .map(Duration::from_nanos),
                )
            });
            let asked = |of: &Option<[Duration; 2]>| of.map(|[ran, waited]| ran + waited);
            if asked(&grown) > asked(&growths[at]) {
                growths[at] = grown;
            }
        }
        self.times = times;
        let throttled = self.throttled.look(process.pid());
        let [launching, proxy] = growths;
        let period = now.saturating_duration_since(self.at.replace(now)?);
        Some(Growth { period, launching, proxy, throttled })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::thread_roles::tests::beside_a_thread;

    /// This process: its first thread waits for the test, and a thread of it runs.
    #[test]
    fn a_thread_of_nccl_s_that_runs_is_told_from_the_first_thread_that_sleeps() {
        beside_a_thread(std::hint::spin_loop, |own, handle, _| {
            let mut watch = ProcessorWatch::default();
            assert_eq!(watch.look(own, || BTreeSet::from([handle])), None, "the first look");
            thread::sleep(Duration::from_millis(300));
            let growth = watch.look(own, BTreeSet::new).unwrap();
            let asked = |of: Option<[Duration; 2]>| of.map(|[ran, waited]| ran + waited).unwrap();
            assert!(asked(growth.proxy) > growth.period / 2, "{growth:?}");
            assert!(asked(growth.launching) < growth.period / 2, "{growth:?}");
        });
    }
}
