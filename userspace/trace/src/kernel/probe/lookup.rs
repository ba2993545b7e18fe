//! Finds in a library's layouts what plans need, or says what is missing there.

use super::{
    error::PlanError,
    plan_builder::{PlanBuilder, Slot},
    set::WalkProgram,
};
use flow::wire::{CommunicatorSpans, ProbeKind, Span};
use nccl_library::{
    fields::{FieldRef, channel, comm, counts_always, proxy_op, shared_resources},
    layouts::{Field, Layouts},
    parameter::ParamLocation,
    symbols::{Function, Resolution},
};
use ncclflow_common::FetchPlan;

/// Most bytes of a communicator's identity that are copied at once.
const MAX_IDENTITY: i64 = 64;

/// A plan, the meaning of its record, and the program that follows lists, if it has one.
pub(super) type Compiled = Result<(FetchPlan, ProbeKind, Option<WalkProgram>), PlanError>;

/// Copies who the communicator is, and how many collectives it has launched.
pub(super) fn communicator(
    plan: &mut PlanBuilder,
    resolution: &Resolution,
    comm: Slot,
) -> Result<CommunicatorSpans, PlanError> {
    let layouts = &resolution.layouts;
    let counts_always = counts_always(resolution.nccl_version, Some(layouts)) == Some(true);
    let launched = comm::SEQ_NUMBER.find(layouts).filter(|_| counts_always);
    let (launched_per_function, posted_collectives) = match launched {
        Some(at) => (Some(plan.copy(comm, offset(&at)?, len(at.size)?)), None),
        None => (None, posted_collectives(plan, layouts, comm)?),
    };
    let mut identity = vec![place_of(layouts, comm::RANK)?, place_of(layouts, comm::N_RANKS)?];
    if let Some(hash) = comm::HASH.find(layouts) {
        identity.push(place(&hash)?);
    }
    // These fields have always been neighbours. Were they not, copying what lies between would copy as much
    // as the struct has.
    let (pointer, spans) = if extent(&identity) <= MAX_IDENTITY {
        plan.emit_and_copy_together(comm, &identity)
    } else {
        (plan.emit(comm), identity.iter().map(|(offset, len)| plan.copy(comm, *offset, *len)).collect())
    };
    let [rank, n_ranks, hash @ ..] = spans.as_slice() else { return Err(comm::RANK.missing().into()) };
    let (rank, n_ranks, hash) = (*rank, *n_ranks, hash.first().copied());
    Ok(CommunicatorSpans { pointer, rank, n_ranks, hash, launched_per_function, posted_collectives })
}

fn posted_collectives(
    plan: &mut PlanBuilder,
    layouts: &Layouts,
    comm: Slot,
) -> Result<Option<Span>, PlanError> {
    let (Some(shared), Some(count)) =
        (comm::SHARED_RESOURCES.find(layouts), shared_resources::COLL_OP_COUNT.find(layouts))
    else {
        return Ok(None);
    };
    let shared = plan.load(comm, offset(&shared)?, 8);
    emit_field(plan, shared, &count).map(Some)
}

/// Computes `&comm->channels[op->channelId]`.
pub(super) fn channel_of(
    plan: &mut PlanBuilder,
    layouts: &Layouts,
    comm: Slot,
    op: Slot,
) -> Result<Slot, PlanError> {
    let id = load(plan, layouts, op, proxy_op::CHANNEL_ID)?;
    let first = plan.offset(comm, offset_of(layouts, comm::CHANNELS)?);
    Ok(plan.scale(first, id, signed(channel::STRUCT.size(layouts)?)?))
}

pub(super) fn parameter<'a>(
    function: &'a Function,
    name: &'static str,
) -> Result<&'a ParamLocation, PlanError> {
    function.param(name).map(|param| &param.location).ok_or(PlanError::NoParameter(name))
}

/// Loads a field that is a number or an address.
pub(super) fn load(
    plan: &mut PlanBuilder,
    layouts: &Layouts,
    base: Slot,
    field: FieldRef,
) -> Result<Slot, PlanError> {
    load_field(plan, base, &field.need(layouts)?)
}

pub(super) fn load_field(plan: &mut PlanBuilder, base: Slot, at: &Field) -> Result<Slot, PlanError> {
    Ok(plan.load(base, offset(at)?, len(at.size)?))
}

/// Puts a field that is a number or an address into the record.
pub(super) fn emit_field(plan: &mut PlanBuilder, base: Slot, at: &Field) -> Result<Span, PlanError> {
    let value = load_field(plan, base, at)?;
    Ok(plan.emit(value))
}

pub(super) fn place_of(layouts: &Layouts, field: FieldRef) -> Result<(i64, u16), PlanError> {
    place(&field.need(layouts)?)
}

pub(super) fn place(field: &Field) -> Result<(i64, u16), PlanError> {
    Ok((offset(field)?, len(field.size)?))
}

pub(super) fn offset_of(layouts: &Layouts, field: FieldRef) -> Result<i64, PlanError> {
    offset(&field.need(layouts)?)
}

/// Returns the offset of a field that lies in a struct's first 64 KiB.
pub(super) fn near_offset_of(layouts: &Layouts, field: FieldRef) -> Result<u16, PlanError> {
    len(field.need(layouts)?.offset)
}

/// Returns the bytes from the first field to the end of the last.
pub(super) fn extent(fields: &[(i64, u16)]) -> i64 {
    let end = |(offset, len): &(i64, u16)| offset.saturating_add(i64::from(*len));
    let (first, last) = (fields.iter().map(|(offset, _)| *offset).min(), fields.iter().map(end).max());
    last.unwrap_or(0).saturating_sub(first.unwrap_or(0))
}

pub(super) fn offset(field: &Field) -> Result<i64, PlanError> {
    signed(field.offset)
}

pub(super) fn signed(value: u64) -> Result<i64, PlanError> {
    i64::try_from(value).map_err(|_| PlanError::TooLong(usize::MAX))
}

pub(super) fn len(size: u64) -> Result<u16, PlanError> {
    let too_long = |_| PlanError::TooLong(usize::try_from(size).unwrap_or(usize::MAX));
    u16::try_from(size).map_err(too_long)
}
