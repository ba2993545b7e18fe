//! Finds in a library's layouts what plans need, and says what is not there.

use super::{
    finished_plan::{FinishedPlan, PlanError},
    plan_builder::{PlanBuilder, Slot},
};
use flow::wire::{CommunicatorSpans, ProbeKind, Span};
use nccl_library::{
    layouts::{Field, Layouts},
    parameter::ParamLocation,
    symbols::Function,
};

/// Why a probe cannot be compiled.
#[derive(Debug)]
pub(super) enum Lack {
    Field(&'static str, &'static str),
    Struct(&'static str),
    Parameter(&'static str),
    Plan(PlanError),
}

impl From<PlanError> for Lack {
    fn from(error: PlanError) -> Self {
        Self::Plan(error)
    }
}

impl std::fmt::Display for Lack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Field(strukt, path) => {
                write!(f, "there is no `{strukt}.{path}` in the layouts that are known of this library")
            }
            Self::Struct(strukt) => {
                write!(f, "there is no `{strukt}` in the layouts that are known of this library")
            }
            Self::Parameter(name) => write!(f, "the function has no parameter `{name}`"),
            Self::Plan(error) => write!(f, "{error}"),
        }
    }
}

/// Bytes of a communicator's identity that are copied at once.
const MAX_IDENTITY: i64 = 64;

/// A plan and what its record means.
pub(super) type Compiled = Result<(FinishedPlan, ProbeKind), Lack>;

pub(super) fn communicator(
    plan: &mut PlanBuilder,
    layouts: &Layouts,
    comm: Slot,
) -> Result<CommunicatorSpans, Lack> {
    // 2.23 to 2.25 have seqNumber, but count only while a profiler plugin is loaded. 2.26 counts always; it is the version
    // that gave ncclProxyOp its workCounter.
    let counts_always = layouts.field("ncclProxyOp", "workCounter").is_some();
    let launched = layouts.field("ncclComm", "seqNumber").filter(|_| counts_always);
    let (launched_per_function, posted_collectives) = match launched {
        Some(at) => (Some(plan.copy(comm, offset(&at)?, len(at.size)?)), None),
        None => (None, posted_collectives(plan, layouts, comm)?),
    };
    let rank = field(layouts, "ncclComm", "rank")?;
    let n_ranks = field(layouts, "ncclComm", "nRanks")?;
    let mut identity = vec![place(&rank)?, place(&n_ranks)?];
    if let Some(hash) = layouts.field("ncclComm", "commHash") {
        identity.push(place(&hash)?);
    }
    // They have always been neighbours; were they not, a copy of what lies between would be as large as the struct.
    let (pointer, spans) = if extent(&identity) <= MAX_IDENTITY {
        plan.emit_and_copy_together(comm, &identity)
    } else {
        (plan.emit(comm), identity.iter().map(|(offset, len)| plan.copy(comm, *offset, *len)).collect())
    };
    let [rank, n_ranks, hash @ ..] = spans.as_slice() else { return Err(Lack::Field("ncclComm", "rank")) };
    let (rank, n_ranks, hash) = (*rank, *n_ranks, hash.first().copied());
    Ok(CommunicatorSpans { pointer, rank, n_ranks, hash, launched_per_function, posted_collectives })
}

fn posted_collectives(plan: &mut PlanBuilder, layouts: &Layouts, comm: Slot) -> Result<Option<Span>, Lack> {
    let (Some(shared), Some(count)) =
        (layouts.field("ncclComm", "sharedRes"), layouts.field("ncclSharedResources", "collOpCount"))
    else {
        return Ok(None);
    };
    let shared = plan.load(comm, offset(&shared)?, 8);
    let count = plan.load(shared, offset(&count)?, len(count.size)?);
    Ok(Some(plan.emit(count)))
}

/// `&comm->channels[op->channelId]`.
pub(super) fn channel_of(
    plan: &mut PlanBuilder,
    layouts: &Layouts,
    comm: Slot,
    op: Slot,
) -> Result<Slot, Lack> {
    let id = field(layouts, "ncclProxyOp", "channelId")?;
    let channels = offset(&field(layouts, "ncclComm", "channels")?)?;
    let size = layouts.struct_size("ncclChannel").ok_or(Lack::Struct("ncclChannel"))?;
    let id = plan.load(op, offset(&id)?, len(id.size)?);
    let first = plan.offset(comm, channels);
    Ok(plan.scale(first, id, signed(size)?))
}

pub(super) fn parameter<'a>(function: &'a Function, name: &'static str) -> Result<&'a ParamLocation, Lack> {
    function.param(name).map(|param| &param.location).ok_or(Lack::Parameter(name))
}

pub(super) fn field(layouts: &Layouts, strukt: &'static str, path: &'static str) -> Result<Field, Lack> {
    layouts.field(strukt, path).ok_or(Lack::Field(strukt, path))
}

/// Loads a field that is a number or an address.
pub(super) fn load_field(builder: &mut PlanBuilder, base: Slot, at: &Field) -> Result<Slot, Lack> {
    Ok(builder.load(base, offset(at)?, len(at.size)?))
}

pub(super) fn place(field: &Field) -> Result<(i64, u16), Lack> {
    Ok((offset(field)?, len(field.size)?))
}

/// Bytes from the first field to the end of the last.
pub(super) fn extent(fields: &[(i64, u16)]) -> i64 {
    let end = |(offset, len): &(i64, u16)| offset.saturating_add(i64::from(*len));
    let (first, last) = (fields.iter().map(|(offset, _)| *offset).min(), fields.iter().map(end).max());
    last.unwrap_or(0).saturating_sub(first.unwrap_or(0))
}

pub(super) fn offset(field: &Field) -> Result<i64, Lack> {
    signed(field.offset)
}

pub(super) fn signed(value: u64) -> Result<i64, Lack> {
    i64::try_from(value).map_err(|_| Lack::Plan(PlanError::TooLong(usize::MAX)))
}

pub(super) fn len(size: u64) -> Result<u16, Lack> {
    u16::try_from(size)
        .map_err(|_| Lack::Plan(PlanError::TooLong(usize::try_from(size).unwrap_or(usize::MAX))))
}
