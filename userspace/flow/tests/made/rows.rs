//! Rows made by hand.

use super::ops::{Op, host};
use crate::{
    model::Rows,
    schema::{MessageRow, OpRow},
};

/// Makes the row of the default op; to be varied.
pub fn op_row() -> OpRow {
    Rows::default().op(&Op::default().record(), &host(10)).row
}

/// Makes the rows of the default op's messages; to be varied.
pub fn message_rows() -> Vec<MessageRow> {
    let (record, mut rows, mut found) = (Op::default().record(), Rows::default(), Vec::new());
    let op = rows.op(&record, &host(10));
    rows.messages(&record, &op, |messages| found.extend_from_slice(messages));
    found
}
