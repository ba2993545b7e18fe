//! The API's view of an op, where the op leads to it (2.23 and later).

use nccl_library::nccl::{Name, NameTables, Pattern};

use super::{RecordView, Result, record::if_readable};
use crate::wire::TaskSpans;

/// Task of an op.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskInfo {
    /// Address of the task: the same for all channels of one call.
    pub pointer: u64,
    /// Elements of a collective, as given by the caller.
    pub count: Option<u64>,
    /// Element type of a collective, as given by the caller.
    pub datatype: Option<Name>,
    pub function: Option<Name>,
    /// Bytes of a p2p call, over all its channels.
    pub p2p_bytes: Option<u64>,
    /// Channels that a p2p call is split over.
    pub p2p_channels: Option<u64>,
    /// Function that was called, for p2p ops; 2.28 and later, where the whole plan is seen.
    pub called: Option<Name>,
    /// Addresses that the program gave, to send from and to receive into; for a p2p op they are the same.
    /// Only where the whole plan is seen.
    pub buffers: Option<[u64; 2]>,
}

/// Decodes the task of an op; `None` where it cannot be read, as the op is an op without it.
pub(super) fn of_op(
    spans: Option<&TaskSpans>,
    pattern: Pattern,
    names: &NameTables,
    record: &RecordView<'_>,
) -> Result<Option<TaskInfo>> {
    let Some(spans) = spans else { return Ok(None) };
    Ok(if_readable(task(spans, pattern, names, record))?.flatten())
}

fn task(
    spans: &TaskSpans,
    pattern: Pattern,
    names: &NameTables,
    record: &RecordView<'_>,
) -> Result<Option<TaskInfo>> {
    let pointer = record.unsigned(&spans.pointer)?;
    if pointer == 0 {
        return Ok(None);
    }
    let int = |span| record.int(span).map(i64::from);
    Ok(Some(if pattern.is_p2p() {
        TaskInfo {
            pointer,
            p2p_bytes: Some(record.unsigned(&spans.p2p_bytes)?),
            p2p_channels: record.optional(spans.p2p_channels.as_ref())?,
            ..TaskInfo::default()
        }
    } else {
        TaskInfo {
            pointer,
            count: Some(record.unsigned(&spans.coll_count)?),
            datatype: names.datatype(int(&spans.coll_datatype)?).cloned(),
            function: names.function(int(&spans.coll_function)?).cloned(),
            ..TaskInfo::default()
        }
    }))
}
