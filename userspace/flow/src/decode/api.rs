//! Records of the API's calls.

use std::str;

use super::{CommunicatorId, Origin, RecordView, Result, communicator::communicator, record::if_readable};
use crate::wire::{ApiArgumentsSpans, ApiCallSpans, ApiEntrySpans, ApiLineSpans, ApiReturnSpans, Span};
use nccl_library::nccl::{ApiFunction, Name, NameTables};

/// A call of `ncclEnqueueCheck`: every collective and p2p call of the API comes through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiCallEvent {
    pub origin: Origin,
    pub comm: CommunicatorId,
    /// `AllReduce`, `Send` …
    pub name: Name,
    pub function: Option<Name>,
    pub count: u64,
    /// Root of a collective, peer of a p2p call.
    pub root: i32,
}

/// The operator of a reduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReductionOp {
    /// Operator of NCCL's own: `sum`, `prod` …
    BuiltIn(Name),
    /// Operator that the program made, or a number that is none: `ncclRedOpCreatePreMulSum` is the only maker
    /// of operators up to 2.32, and numbers its ops from `ncclNumOps` on, mixed with a hash of the
    /// communicator's address.
    User(i32),
    /// Unknown operator, as the library's enum is not known.
    Unknown,
}

/// A call of the API, as the program made it: of `ncclEnqueueCheck`, or of an exported function. It has only
/// what the call itself says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiLineEvent {
    pub origin: Origin,
    /// The communicator. `None`: it could not be read, as the program gave none, or one that is no more; or
    /// as the library's layouts are not known.
    pub comm: Option<CommunicatorId>,
    /// Address of the `ncclComm`, as given.
    pub comm_pointer: u64,
    /// `ncclComm.opCount`.
    pub op_count: Option<u64>,
    /// `AllReduce`, `Send` …: `ncclInfo.opName`, or the name of the function's number.
    pub name: Name,
    pub send_buffer: u64,
    pub recv_buffer: u64,
    pub count: u64,
    pub datatype: Option<Name>,
    pub reduction_op: ReductionOp,
    /// Root of a collective, peer of a p2p or one-sided call.
    pub root: i32,
    pub stream: u64,
    /// Stack pointer at the entry of the probed function.
    pub stack_pointer: u64,
    /// Ops are recorded, too.
    pub with_ops: bool,
    /// The call was recorded at an exported function, as the library's layouts are not known.
    pub by_arguments: bool,
}

/// Entry of the program into an exported function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiEntryEvent {
    pub origin: Origin,
    pub function: ApiFunction,
    pub stack_pointer: u64,
}

/// Return of an exported function to the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiReturnEvent {
    pub origin: Origin,
    pub function: ApiFunction,
    /// `ncclSuccess` …, or the number where the library's enum does not know it.
    pub result: Name,
    pub is_error: bool,
    pub stack_pointer: u64,
}

/// Decodes a record of an exported function's entry.
pub(super) fn api_entry(spans: &ApiEntrySpans, record: &RecordView<'_>) -> Result<ApiEntryEvent> {
    let stack_pointer = record.unsigned(&spans.stack_pointer)?;
    Ok(ApiEntryEvent { origin: record.origin(), function: spans.function, stack_pointer })
}

/// Decodes a record of an exported function's return.
pub(super) fn api_return(
    spans: &ApiReturnSpans,
    names: &NameTables,
    record: &RecordView<'_>,
) -> Result<ApiReturnEvent> {
    let number = i64::from(record.int(&spans.result)?);
    let name = names.result(number);
    Ok(ApiReturnEvent {
        origin: record.origin(),
        function: spans.function,
        // A communicator that does not block has only begun the work: that is no error.
        is_error: number != 0 && name.is_none_or(|name| *name != "ncclInProgress"),
        result: name.map_or_else(|| Name::from(number.to_string().as_str()), Name::clone),
        stack_pointer: record.unsigned(&spans.stack_pointer)?,
    })
}

/// Decodes a record of `ncclEnqueueCheck`.
pub(super) fn api_line(
    spans: &ApiLineSpans,
    names: &NameTables,
    record: &RecordView<'_>,
) -> Result<ApiLineEvent> {
    let comm = if_readable(communicator(&spans.comm, record))?;
    let number = i64::from(record.int(&spans.function)?);
    let text = record.bytes(&spans.name).ok().map(|bytes| function_name(names, bytes));
    let name = text
        .filter(|name| !name.is_empty())
        .or_else(|| names.function(number).cloned())
        .unwrap_or_else(|| Name::from("unknown"));
    let op_count = match (&comm, &spans.op_count) {
        (Some(_), Some(span)) => record.unsigned(span).ok(),
        _ => None,
    };
    Ok(ApiLineEvent {
        origin: record.origin(),
        comm,
        comm_pointer: record.unsigned(&spans.comm.pointer)?,
        op_count,
        name,
        send_buffer: record.unsigned(&spans.send_buffer)?,
        recv_buffer: record.unsigned(&spans.recv_buffer)?,
        count: record.unsigned(&spans.count)?,
        datatype: names.datatype(record.int(&spans.datatype)?.into()).cloned(),
        reduction_op: reduction_op(names, record.int(&spans.reduction_op)?),
        root: record.int(&spans.root)?,
        stream: record.unsigned(&spans.stream)?,
        with_ops: spans.with_ops,
        by_arguments: false,
        stack_pointer: record.unsigned(&spans.stack_pointer)?,
    })
}

/// Decodes a record of an exported function that communicates.
pub(super) fn api_arguments(
    spans: &ApiArgumentsSpans,
    names: &NameTables,
    record: &RecordView<'_>,
) -> Result<ApiLineEvent> {
    let int = |span: &Option<Span>| record.optional_int(span.as_ref());
    let word = |span: &Option<Span>| Ok(record.optional(span.as_ref())?.unwrap_or(0));
    Ok(ApiLineEvent {
        origin: record.origin(),
        comm: None,
        comm_pointer: record.unsigned(&spans.comm)?,
        op_count: None,
        name: names.function_named(spans.function.call_name()),
        send_buffer: word(&spans.send_buffer)?,
        recv_buffer: word(&spans.recv_buffer)?,
        count: word(&spans.count)?,
        datatype: int(&spans.datatype)?.and_then(|number| names.datatype(number.into()).cloned()),
        reduction_op: int(&spans.reduction_op)?
            .map_or(ReductionOp::Unknown, |number| reduction_op(names, number)),
        root: int(&spans.root)?.unwrap_or(0),
        stream: record.unsigned(&spans.stream)?,
        stack_pointer: record.unsigned(&spans.stack_pointer)?,
        with_ops: false,
        by_arguments: true,
    })
}

fn reduction_op(names: &NameTables, number: i32) -> ReductionOp {
    match names.reduction_op(number.into()) {
        Some(name) => ReductionOp::BuiltIn(name.clone()),
        None if names.has_reduction_ops() => ReductionOp::User(number),
        None => ReductionOp::Unknown,
    }
}

/// Decodes a record of `ncclEnqueueCheck`. `None`: the call has no communicator.
pub(super) fn api_call(
    spans: &ApiCallSpans,
    names: &NameTables,
    record: &RecordView<'_>,
) -> Result<Option<ApiCallEvent>> {
    if record.unsigned(&spans.comm.pointer)? == 0 {
        return Ok(None);
    }
    let function = names.function(record.int(&spans.function)?.into()).cloned();
    // The name is in the library's file, and its page need not be in memory.
    let name = record.bytes(&spans.name).ok().map(|bytes| function_name(names, bytes));
    let name = name.or_else(|| function.clone()).unwrap_or_else(|| Name::from("unknown"));
    Ok(Some(ApiCallEvent {
        origin: record.origin(),
        comm: communicator(&spans.comm, record)?,
        name,
        function,
        count: record.unsigned(&spans.count)?,
        root: record.int(&spans.root)?,
    }))
}

/// Returns the printable bytes of a C string.
fn printable(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().copied().take_while(|byte| *byte != 0).filter(u8::is_ascii_graphic)
}

/// Returns the name of a function of the API. All uses of a name that the library's enum has share its text.
fn function_name(names: &NameTables, bytes: &[u8]) -> Name {
    let c_string = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    match str::from_utf8(c_string) {
        Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => names.function_named(text),
        _ => Name::from(printable(bytes).map(char::from).collect::<String>().as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_known_or_kept_as_it_can_be_printed() {
        let names = NameTables::default();
        assert_eq!(function_name(&names, b"AllReduce\0x"), "AllReduce");
        assert_eq!(function_name(&names, b"All\x1bRed\xc3uce\0"), "AllReduce");
        assert_eq!(function_name(&names, b""), "");
    }
}
