//! Finds who is who while a recording goes on ([`flow::identity`]).
//!
//! Some of it is in the initial environment of a process ([`environment`]), some in `ncclComm`
//! ([`communicator`]), and the rest in files of the user ([`RankMap`]).
//!
//! Name, GPU and node of a communicator are read in the process's memory by the thread `ncclflow-who`, when
//! the recording first has a record of it: no trap more and no record longer, at the price that a job which
//! ends within some tenths of a second is not read. The read proves, before and after, that it is the
//! communicator of the record. Each recording, window and segment takes from one list what it does not have
//! yet.

mod communicator;
mod environment;
mod process;
mod rank_map;
mod registry;
mod watch;

pub(crate) use environment::read_variables;
pub use process::WhoOptions;
pub use rank_map::{RankMap, RankMapFile};
pub(crate) use watch::{Who, WhoReport};
