//! CUDA's driver of followed processes, whose launches of graphs are recorded. It is probed process by process:
//! other programs of the node launch graphs, too, and they are to pay nothing.

use anyhow::Result;
use flow::session::Level;
use inspect::{process::Process, resolver};

use super::Follower;
use crate::{
    kernel::loader::Link,
    record::{
        recorder::Recording,
        setup::{NO_DRIVER, NO_TIES},
    },
};

/// Why a process gets no link.
const NO_ROOM: &str = "it needs a link of its own, and its user or container has too many processes";

impl Follower<'_> {
    /// Attaches the probes of graphs to a process that is traced, once: adds the driver to its libraries, and the
    /// link to its links. Returns why it does not, where that lasts; a failure may not recur.
    pub(super) fn join_driver(
        &mut self,
        process: &Process,
        tenant: Option<u32>,
        has_room: bool,
        (libraries, links): (&mut Vec<usize>, &mut Vec<(usize, Link)>),
        recording: &mut Recording<'_>,
    ) -> Result<Option<&'static str>> {
        if recording.options.choice.level == Level::Api {
            return Ok(None);
        }
        if !libraries.iter().any(|index| self.libraries.ties_graphs(*index)) {
            return Ok(Some(NO_TIES));
        }
        let Some(file) = resolver::driver(process)? else { return Ok(Some(NO_DRIVER)) };
        let index = self.libraries.index_of(file, (process.pid(), tenant), recording)?;
        if libraries.contains(&index) {
            return Ok(None);
        }
        if !has_room {
            return Ok(Some(NO_ROOM));
        }
        let (_, new) = self.libraries.attach(index, process.pid(), process.started(), recording)?;
        links.extend(new.into_iter().map(|link| (index, link)));
        libraries.push(index);
        Ok(None)
    }
}

/// Tells whether none of a process's libraries is NCCL: its driver alone is not worth a probe.
pub(super) fn is_without_nccl(libraries: &[usize], is_driver: impl Fn(usize) -> bool) -> bool {
    libraries.iter().all(|index| is_driver(*index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_which_only_the_driver_is_left_is_not_traced() {
        let is_driver = |index| index == 1;
        assert!(is_without_nccl(&[], is_driver) && is_without_nccl(&[1], is_driver));
        assert!(!is_without_nccl(&[0], is_driver) && !is_without_nccl(&[1, 2], is_driver));
    }
}
