//! The session that is shown.

use std::collections::BTreeMap;

use flow::session::Level;

#[derive(Clone, Debug, Default)]
pub struct Subject {
    pub host: String,
    pub level: Option<Level>,
    /// Name and NCCL version of each process.
    pub processes: BTreeMap<u32, (String, String)>,
}

impl Subject {
    pub fn name(&self, pid: u32) -> &str {
        self.processes.get(&pid).map_or("", |(name, _)| name)
    }
}
