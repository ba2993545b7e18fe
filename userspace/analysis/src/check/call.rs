//! A collective as a rank called it.

use flow::schema::{ApiCallRow, OpRow};
use nccl_library::nccl::Name;
use serde::Serialize;

/// Fields that must be equal on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Call {
    /// `AllReduce` …
    #[serde(rename = "function")]
    pub(super) coll: Name,
    pub(super) count: Option<u64>,
    #[serde(rename = "datatype")]
    pub(super) dtype: Option<Name>,
    #[serde(rename = "redop")]
    pub(super) red_op: Option<Name>,
    pub(super) root: Option<i32>,
}

fn is_rooted(function: &str) -> bool {
    matches!(function, "Broadcast" | "Reduce" | "Gather" | "Scatter")
}

impl Call {
    pub(super) fn of(line: &OpRow) -> Self {
        let coll = line.called().cloned().unwrap_or_else(|| "".into());
        let reduces = matches!(coll.as_str(), "AllReduce" | "Reduce" | "ReduceScatter");
        Self {
            count: line.count,
            dtype: line.dtype.clone(),
            red_op: line.red_op.clone().filter(|_| reduces),
            root: is_rooted(coll.as_str()).then_some(line.root),
            coll,
        }
    }

    /// Returns the program's call.
    pub(super) fn of_call(row: &ApiCallRow) -> Self {
        Self {
            coll: row.function.clone(),
            count: Some(row.count),
            dtype: row.datatype.clone(),
            red_op: row.redop.clone(),
            root: row.root,
        }
    }

    /// Returns the first difference between two calls.
    pub(super) fn difference(&self, other: &Self) -> Option<&'static str> {
        if self.coll != other.coll {
            return Some("another operation");
        }
        if self.count.is_some() && other.count.is_some() && self.count != other.count {
            return Some("another count");
        }
        if self.dtype != other.dtype {
            return Some("another data type");
        }
        if self.red_op != other.red_op {
            return Some("another reduction");
        }
        (self.root != other.root).then_some("another root")
    }

    pub(super) fn describe(&self) -> String {
        let mut words = vec![self.coll.to_string()];
        words.extend(self.count.map(|count| format!("of {count}")));
        words.extend(self.dtype.as_ref().map(Name::to_string));
        words.extend(self.red_op.as_ref().map(Name::to_string));
        words.extend(self.root.map(|root| format!("root {root}")));
        words.join(" ")
    }
}
