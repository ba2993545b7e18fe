//! Reads who is who ([`flow::identity`]): the initial environment of a process ([`read_variables`]),
//! `ncclComm` ([`read_communicator`]), and a file of the user ([`RankMap`]).

mod communicator;
mod environment;
mod process;
mod rank_map;

pub use communicator::{Seen, read_communicator, with_driver};
pub use environment::read_variables;
pub use process::{WhoOptions, read_process};
pub use rank_map::{RankMap, RankMapFile};
