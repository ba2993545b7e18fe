//! Steps of plans that name NCCL's fields, which are found in the library's layouts.
//!
//! What the library lacks is kept by the plan, and told by [`PlanBuilder::finish`].

use anyhow::{Error, Result, anyhow};

use super::{
    plan_builder::{PlanBuilder, Slot, too_long},
    set::WalkProgram,
};
use flow::wire::{CommunicatorSpans, ProbeKind, Span};
use nccl_library::{
    fields::{FieldRef, MissingField, StructRef, channel, comm, counts_always, proxy_op, shared_resources},
    symbols::{Function, Resolution},
};
use ncclflow_common::FetchPlan;

/// Most bytes over which fields of one struct are copied at once, with what lies between them. Those that are
/// asked for together have always been neighbours.
const MAX_NEAR: u16 = 128;

/// Place of a word that is not in the record.
const NOTHING: Span = Span { at: 0, len: 0, rests_on: 0 };

/// A plan, the meaning of its record, and the program that follows lists, if it has one.
pub(super) type Compiled = Result<(FetchPlan, ProbeKind, Option<WalkProgram>)>;

/// Offset of a field in its struct, and its bytes.
type Place = (i64, u16);

/// Says that the function has no parameter of that name.
pub(super) fn no_parameter(name: &str) -> Error {
    anyhow!("the function has no parameter `{name}`")
}

impl PlanBuilder<'_> {
    /// Returns the plan of a probe that walks no lists.
    pub(super) fn compiled(self, kind: ProbeKind) -> Compiled {
        Ok((self.finish()?, kind, None))
    }

    /// Returns the number as a type that it fits.
    pub(super) fn number<T: TryFrom<u64> + Default>(&mut self, value: u64) -> T {
        T::try_from(value).unwrap_or_else(|_| self.lack(too_long(value)))
    }

    fn known<T: Default>(&mut self, found: Result<T, MissingField>) -> T {
        found.unwrap_or_else(|missing| self.lack(missing))
    }

    pub(super) fn offset_of<T: TryFrom<u64> + Default>(&mut self, field: FieldRef) -> T {
        let offset = self.known(field.need(self.layouts).map(|field| field.offset));
        self.number(offset)
    }

    pub(super) fn size_of<T: TryFrom<u64> + Default>(&mut self, strukt: StructRef) -> T {
        let size = self.known(strukt.size(self.layouts));
        self.number(size)
    }

    /// Returns the bytes of an element of a field that is an array.
    pub(super) fn element_size(&mut self, field: FieldRef) -> i64 {
        let size = self.known(field.array(self.layouts).map(|array| array.elem_size));
        self.number(size)
    }

    fn find(&mut self, field: FieldRef) -> Option<Place> {
        let field = field.find(self.layouts)?;
        Some((self.number(field.offset), self.number(field.size)))
    }

    pub(super) fn place_of(&mut self, field: FieldRef) -> Place {
        self.find(field).unwrap_or_else(|| self.lack(field.missing()))
    }

    /// Returns the value of a parameter at the function's entry.
    pub(super) fn parameter(&mut self, function: &Function, name: &'static str) -> Slot {
        match function.param(name) {
            Some(param) => self.value_at(&param.location),
            None => self.lack(no_parameter(name)),
        }
    }

    /// Returns the value of a parameter of type `int` (or another of 32 bits or fewer), sign-extended.
    pub(super) fn int_parameter(&mut self, function: &Function, name: &'static str) -> Slot {
        let raw = self.parameter(function, name);
        self.int32(raw)
    }

    /// Loads a field that is a number or an address.
    pub(super) fn load_field(&mut self, base: Slot, field: FieldRef) -> Slot {
        let (offset, len) = self.place_of(field);
        self.load(base, offset, len)
    }

    pub(super) fn load_if_there(&mut self, base: Slot, field: FieldRef) -> Option<Slot> {
        field.exists(self.layouts).then(|| self.load_field(base, field))
    }

    pub(super) fn load_pointer(&mut self, base: Slot, field: FieldRef) -> Slot {
        let offset = self.offset_of(field);
        self.load(base, offset, 8)
    }

    /// Loads several addresses, with one read where they lie close together.
    pub(super) fn load_pointers<const N: usize>(&mut self, base: Slot, fields: [FieldRef; N]) -> [Slot; N] {
        let offsets = fields.map(|field| self.offset_of(field));
        self.load_words(base, offsets)
    }

    /// Puts a field that is a number or an address into the record.
    pub(super) fn emit_field(&mut self, base: Slot, field: FieldRef) -> Span {
        let value = self.load_field(base, field);
        self.emit(value)
    }

    pub(super) fn emit_if_there(&mut self, base: Slot, field: FieldRef) -> Option<Span> {
        field.exists(self.layouts).then(|| self.emit_field(base, field))
    }

    pub(super) fn copy_field(&mut self, base: Slot, field: FieldRef) -> Span {
        let (offset, len) = self.place_of(field);
        self.copy(base, offset, len)
    }

    pub(super) fn copy_if_there(&mut self, base: Slot, field: FieldRef) -> Option<Span> {
        field.exists(self.layouts).then(|| self.copy_field(base, field))
    }

    /// Copies fields of the struct at `base + at`. Returns the places of those that are needed, and of those
    /// that not every version has.
    pub(super) fn copy_fields<const N: usize, const M: usize>(
        &mut self,
        (base, at): (Slot, i64),
        needed: [FieldRef; N],
        optional: [Option<FieldRef>; M],
    ) -> ([Span; N], [Option<Span>; M]) {
        let (_, needed, optional) = self.together((base, at), false, needed, optional);
        (needed, optional)
    }

    /// Puts the word into the record, and copies fields of the struct that it points to.
    pub(super) fn emit_and_copy_fields<const N: usize, const M: usize>(
        &mut self,
        base: Slot,
        needed: [FieldRef; N],
        optional: [Option<FieldRef>; M],
    ) -> (Span, [Span; N], [Option<Span>; M]) {
        self.together((base, 0), true, needed, optional)
    }

    /// Copies fields, at once if they lie near each other, behind the word `base` if it is to be emitted.
    fn together<const N: usize, const M: usize>(
        &mut self,
        (base, at): (Slot, i64),
        emits: bool,
        needed: [FieldRef; N],
        optional: [Option<FieldRef>; M],
    ) -> (Span, [Span; N], [Option<Span>; M]) {
        let needed = needed.map(|field| self.place_of(field));
        let optional = optional.map(|field| self.find(field?));
        let all = || needed.iter().chain(optional.iter().flatten());
        let first = all().map(|(offset, _)| *offset).min().unwrap_or(0);
        let end = all().map(|(offset, len)| offset.saturating_add(i64::from(*len))).max().unwrap_or(0);
        let near = u16::try_from(end - first).ok().filter(|len| *len <= MAX_NEAR);
        let (word, copied) = match near {
            Some(len) if emits => {
                let (word, copied) = self.emit_and_copy(base, at.saturating_add(first), len);
                (word, Some(copied))
            }
            Some(len) => (NOTHING, Some(self.copy(base, at.saturating_add(first), len))),
            None => (if emits { self.emit(base) } else { NOTHING }, None),
        };
        let mut place = |(offset, len): Place| match copied {
            Some(all) => all.part(u16::try_from(offset - first).unwrap_or(u16::MAX), len),
            None => self.copy(base, at.saturating_add(offset), len),
        };
        (word, needed.map(&mut place), optional.map(|found| found.map(&mut place)))
    }

    /// Copies who the communicator is, and how many collectives it has launched.
    pub(super) fn communicator(&mut self, resolution: &Resolution, comm: Slot) -> CommunicatorSpans {
        let counts_always = counts_always(resolution.nccl_version, Some(self.layouts)) == Some(true);
        let launched_per_function =
            if counts_always { self.copy_if_there(comm, comm::SEQ_NUMBER) } else { None };
        let posted_collectives = match launched_per_function {
            None => self.posted_collectives(comm),
            Some(_) => None,
        };
        let (pointer, [rank, n_ranks], [hash]) =
            self.emit_and_copy_fields(comm, [comm::RANK, comm::N_RANKS], [Some(comm::HASH)]);
        CommunicatorSpans { pointer, rank, n_ranks, hash, launched_per_function, posted_collectives }
    }

    fn posted_collectives(&mut self, comm: Slot) -> Option<Span> {
        let is_there = [comm::SHARED_RESOURCES, shared_resources::COLL_OP_COUNT]
            .iter()
            .all(|field| field.exists(self.layouts));
        is_there.then(|| {
            let shared = self.load_pointer(comm, comm::SHARED_RESOURCES);
            self.emit_field(shared, shared_resources::COLL_OP_COUNT)
        })
    }

    /// Computes `&comm->channels[op->channelId]`.
    pub(super) fn channel_of(&mut self, comm: Slot, op: Slot) -> Slot {
        let id = self.load_field(op, proxy_op::CHANNEL_ID);
        let channels = self.offset_of(comm::CHANNELS);
        let first = self.offset(comm, channels);
        let size = self.size_of(channel::STRUCT);
        self.scale(first, id, size)
    }
}
