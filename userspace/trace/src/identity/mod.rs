//! Finds who is who while a recording goes on ([`inspect::identity`]).
//!
//! Name, GPU and node of a communicator are read in the process's memory by the thread `ncclflow-who`, when
//! the recording first has a record of it: no trap more and no record longer, at the price that a job which
//! ends within some tenths of a second is not read. The read proves, before and after, that it is the
//! communicator of the record. Each recording, window and segment takes from one list what it does not have
//! yet.

mod nics;
mod registry;
mod watch;

pub(crate) use registry::Registry;
pub(crate) use watch::Who;
