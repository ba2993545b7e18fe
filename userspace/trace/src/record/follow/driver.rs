//! CUDA's driver of followed processes, whose launches of graphs are recorded. It is probed process by process:
//! other programs of the node launch graphs, too, and they are to pay nothing.

use anyhow::{Context as _, Result, bail};
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

impl Follower<'_> {
    /// Attaches the probes of graphs to a process that is traced, once: adds the driver to its libraries, and the
    /// link to its links.
    pub(super) fn join_driver(
        &mut self,
        process: &Process,
        tenant: Option<u32>,
        has_room: bool,
        (libraries, links): (&mut Vec<usize>, &mut Vec<(usize, Link)>),
        recording: &mut Recording<'_>,
    ) -> Result<()> {
        if recording.options.choice.level == Level::Api {
            return Ok(());
        }
        if !libraries.iter().any(|index| self.libraries.ties_graphs(*index)) {
            bail!("{NO_TIES}");
        }
        let file = resolver::driver(process)?.context(NO_DRIVER)?;
        let index = self.libraries.index_of(file, (process.pid(), tenant), recording)?;
        if libraries.contains(&index) {
            return Ok(());
        }
        if !has_room {
            bail!("it needs a link of its own, and its user or container has too many processes");
        }
        let (_, new) = self.libraries.attach(index, process.pid(), process.started(), recording)?;
        links.extend(new.into_iter().map(|link| (index, link)));
        libraries.push(index);
        Ok(())
    }
}
