//! The history of processes as data: the schema of `--json` (docs/HISTORY.md).

use serde::{Deserialize, Serialize};

use torch_history::{GroupHistory, HistoryVerdict, ProcessHistory};

/// Version of the schema. Fields may be added within one version; none changes its meaning.
pub const HISTORY_SCHEMA: u32 = 1;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryReport {
    pub schema: u32,
    pub host: String,
    pub unix_time_ns: i64,
    pub verdict: HistoryVerdict,
    pub groups: Vec<GroupHistory>,
    pub processes: Vec<ProcessHistory>,
}
