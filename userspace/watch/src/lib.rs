//! Watches the jobs of a host, always, by NCCL's own counters in memory: no probe, and no write to a target.
//!
//! [`Book`] is pure: it takes readings and the time, and says what happens to each job. What it suspects is
//! looked at by a dump, off the loop that reads.

mod blind;
mod book;
mod communicator;
mod crawl;
mod dumps;
mod event;
mod exec;
mod find;
mod job;
mod live;
mod look;
mod own;
mod phase;
mod ports;
mod readers;
mod reading;
mod rhythm;
mod run;
mod settings;
mod shares;
mod slow;
mod slower;
mod standing;
mod store;

pub use book::{Book, JobView, News, WantedLook};
pub use communicator::{CommState, Life, RankState, Waits};
pub use event::{AlertKind, CommOfEvent, Culprit, Event, EventBody, EventType, JobOfEvent, JobRates, SCHEMA};
pub use exec::SERVICE_VARIABLES;
pub use look::Look;
pub use own::OwnState;
pub use phase::Phase;
pub use reading::{
    CommKey, GpuState, HostReading, ProcessInfo, ProcessKey, ProcessReading, RankCounts, RankInfo,
    RankReading, Steps,
};
pub use run::{Observer, WatchOptions, watch};
pub use settings::Settings;
pub use store::Budget;

#[cfg(test)]
mod tests;
