//! Who is who: the job, user and container of a process, and the GPU, node and name of a communicator's rank.
//!
//! Probes give a rank of a communicator and a process ID. People ask for the rank in the job, whose job it is
//! and which GPU. Some of this is in the initial environment of the process ([`environment`]), some in
//! `ncclComm` ([`communicator`]), and the rest in files of the user ([`RankMap`]). All of it is a tenant's:
//! it is bounded and cleaned, and nothing is decided by it.
//!
//! The facts that were found stand in the recording ([`crate::recording::Event`]), so that a reader on
//! another machine knows them: both a recording and its readers ask [`Known`].
//!
//! Name, GPU and node of a communicator are read in the process's memory by the thread `ncclflow-who`, when
//! the recording first has a record of it: no trap more and no record longer, at the price that a job which
//! ends within some tenths of a second is not read. The read proves, before and after, that it is the
//! communicator of the record. Each recording, window and segment takes from one list what it does not have
//! yet.

mod communicator;
mod environment;
mod job;
mod known;
mod process;
mod rank_map;
mod registry;
mod watch;

pub use communicator::CommunicatorFacts;
pub use environment::{JobVariable, Variables};
pub use job::{Job, JobSource, Largest};
pub use known::Known;
pub use process::{ProcessFacts, WhoOptions, Whose};
pub use rank_map::{RankMap, RankMapFile};
pub(crate) use watch::{CommunicatorWatch, Who, WhoReport};
