//! Marks of the steps of a proxy's ops in flight, which are looked at again and again.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Instant,
};

use inspect::memory::Memory;

use super::{ProxyLayout, walk};
use crate::ProxyListState;

/// Number of subs at the beginning of a list that a mark is made of: the oldest, at which others wait.
const MARKED: u64 = 256;

/// State of the steps of a proxy's ops in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// Another value than before, if a step was made.
    At(u64),
    /// The ops changed while they were read.
    Moving,
}

/// Looks at the proxies of one process at one reading: communicators share them.
#[derive(Debug)]
pub struct ProxyLooks {
    until: Instant,
    seen: HashMap<u64, Option<Steps>>,
}

impl ProxyLooks {
    /// After `until` no further proxy is looked at.
    pub fn until(until: Instant) -> Self {
        Self { until, seen: HashMap::new() }
    }

    /// Returns the state of the steps of the proxy at `proxy`, which is looked at once. `None`: its list
    /// cannot be read, or there is no time left.
    pub(crate) fn steps(&mut self, memory: Memory<'_>, layout: &ProxyLayout, proxy: u64) -> Option<Steps> {
        let look = || if Instant::now() < self.until { steps(memory, layout, proxy) } else { None };
        *self.seen.entry(proxy).or_insert_with(look)
    }
}

fn steps(memory: Memory<'_>, layout: &ProxyLayout, proxy: u64) -> Option<Steps> {
    let (state, ops) = walk(memory, layout, proxy, MARKED).ok()?;
    if state == ProxyListState::Torn {
        return Some(Steps::Moving);
    }
    let mut steps: Vec<_> = ops
        .iter()
        .map(|op| {
            let report = &op.report;
            let stages = [report.posted, report.received, report.transmitted, report.done];
            (op.connection, report.p2p, report.op_count, report.nsteps, stages)
        })
        .collect();
    steps.sort_unstable();
    let mut hasher = DefaultHasher::new();
    steps.hash(&mut hasher);
    (state == ProxyListState::Read).then(|| Steps::At(hasher.finish()))
}
