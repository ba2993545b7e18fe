//! Ranks of a communicator on several hosts, by one clock.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{
    clocks::{Between, Clocks, Offset},
    gathered::CommunicatorRows,
    launches::Launches,
    transits::{Link, Place},
    verdict::milliseconds,
};

/// Part of a communicator: its folder, and its rows there.
pub(super) type Part<'a> = (usize, &'a CommunicatorRows);

/// Parts of a communicator whose hosts' clocks are known against each other.
#[derive(Debug)]
pub(super) struct Hosts<'a> {
    parts: Vec<Part<'a>>,
    /// By how much two moments of two hosts can seem to be apart, and are not.
    pub(super) error_ns: u64,
}

impl<'a> Hosts<'a> {
    /// Returns the parts on several hosts, by clocks that are known against each other.
    pub(super) fn of(parts: &[Part<'a>], clocks: &Clocks) -> Vec<Self> {
        let mut by_clock: BTreeMap<usize, Vec<Part<'a>>> = BTreeMap::new();
        for part in parts {
            by_clock.entry(clocks.against(part.0)).or_default().push(*part);
        }
        let hosts = by_clock.into_values().filter(|parts| parts.len() > 1).map(|parts| {
            let mut errors: Vec<u64> = parts.iter().map(|(folder, _)| clocks.error_ns(*folder)).collect();
            errors.sort_unstable();
            let error_ns = errors.iter().rev().take(2).sum();
            Self { parts, error_ns }
        });
        hosts.collect()
    }

    /// Returns the launches of all ranks.
    pub(super) fn launches(&self, clocks: &Clocks) -> Launches {
        let mut launches = Launches::default();
        for (folder, rows) in &self.parts {
            launches.append(&rows.launches, |wall_ns| clocks.common_ns(*folder, wall_ns));
        }
        launches
    }

    /// Returns links from host to host, and of how many of their messages one was taken. `between`: messages
    /// of the communicator.
    pub(super) fn links(&self, between: &[Between], clocks: &Clocks) -> (BTreeMap<(i32, i32), Link>, u64) {
        let of_clock = |folder| clocks.against(folder);
        let clock = self.parts.first().map(|(folder, _)| of_clock(*folder));
        let is_part = |folder| Some(of_clock(folder)) == clock;
        let ours = between.iter().filter(|(_, both)| is_part(both.from) && is_part(both.to));
        let mut messages: Vec<(u64, u64, u64, &Place)> = ours
            .map(|(place, both)| {
                let by_receiver = |wall_ns| clocks.common_ns(both.to, wall_ns);
                let sent_ns = clocks.common_ns(both.from, both.sent_ns);
                (by_receiver(both.arrived_ns), sent_ns, by_receiver(both.since_ns), place)
            })
            .collect();
        messages.sort_unstable_by_key(|(arrived_ns, ..)| *arrived_ns);
        let mut links: BTreeMap<(i32, i32), Link> = BTreeMap::new();
        for (arrived_ns, sent_ns, since_ns, place) in messages {
            links.entry(place.link()).or_default().add(place.channel, sent_ns, since_ns, arrived_ns);
        }
        let strides = self.parts.iter().map(|(_, rows)| rows.transits.stride());
        (links, strides.max().unwrap_or(1))
    }
}

/// The clock of a host, against that of another of the job, in the middle of what was recorded.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostClock {
    pub host: String,
    pub against: String,
    /// By how much it is ahead, derived from messages in both directions.
    pub ahead_ms: f64,
    /// It is ahead by no more and no less than so much.
    pub error_ms: f64,
}

impl HostClock {
    pub(crate) fn new(host: &str, against: &str, ahead: Offset) -> Self {
        let ahead_ms = milliseconds(ahead.ahead_ns.unsigned_abs());
        Self {
            host: host.to_owned(),
            against: against.to_owned(),
            ahead_ms: if ahead.ahead_ns < 0 { -ahead_ms } else { ahead_ms },
            error_ms: milliseconds(ahead.error_ns),
        }
    }
}

/// What is known of the clocks of a job's hosts against each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum HostClocks {
    #[default]
    OneHost,
    /// No messages between some of them were measured in both directions.
    Unknown,
    Known(Vec<HostClock>),
}

impl HostClocks {
    /// `hosts`: by folder.
    pub(super) fn of(hosts: &BTreeMap<usize, String>, clocks: &Clocks) -> Self {
        let against: BTreeSet<usize> = hosts.keys().map(|folder| clocks.against(*folder)).collect();
        let Some(against) = against.first().filter(|_| against.len() == 1) else {
            return if hosts.len() < 2 { Self::OneHost } else { Self::Unknown };
        };
        let name = |folder: &usize| hosts.get(folder).cloned().unwrap_or_default();
        let of_host =
            |folder: &usize| Some(HostClock::new(&name(folder), &name(against), clocks.middle(*folder)?));
        let known: Vec<HostClock> = hosts.keys().filter_map(of_host).collect();
        if hosts.len() < 2 { Self::OneHost } else { Self::Known(known) }
    }
}
