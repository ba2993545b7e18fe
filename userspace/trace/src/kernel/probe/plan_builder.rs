//! Assembles a [`FetchPlan`], and checks what the kernel side does not check.

use std::ops::Range;

use ncclflow_common::{
    FetchPlan, MAX_COPY, MAX_QUEUES, MAX_STEPS, PART_SLOTS, RECORD_CLASSES, RecordClass, RecordHeader, SLOTS,
    STACK_POINTER_SLOT, Step, StepOp, TEMP_SLOTS,
};

use super::{argument_registers::argument_slot, error::PlanError};
use flow::wire::Span;
use nccl_library::{elf::Machine, parameter::ParamLocation};

/// [`MAX_COPY`] as steps carry it.
const COPY_STEP: u16 = 256;
const _: () = assert!(COPY_STEP as usize == MAX_COPY);

/// Words that one [`StepOp::LoadWords`] of a probe's plan can load, and slots that it can begin at.
const SLOTS_OF_WORDS: usize = SLOTS / 2;

/// A word that the plan computes in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u8);

impl Slot {
    pub fn number(self) -> u8 {
        self.0
    }
}

/// The intermediate values that existed at some point: see [`PlanBuilder::mark`].
#[derive(Clone, Copy, Debug)]
pub struct Mark(u8);

/// Builds a plan step by step. Errors are kept and reported by [`PlanBuilder::finish`].
#[derive(Debug)]
pub struct PlanBuilder {
    machine: Machine,
    steps: Vec<Step>,
    temps: Range<u8>,
    next_temp: u8,
    record_len: usize,
    /// Steps that the value of each slot rests on, as bits.
    rests_on: [u64; SLOTS],
    /// Classes that the plan's record can have.
    classes: &'static [RecordClass],
    error: Option<PlanError>,
}

impl PlanBuilder {
    /// Begins a plan that is run at a probe.
    pub fn new(machine: Machine) -> Self {
        Self::with_temps(machine, TEMP_SLOTS)
    }

    /// Begins a plan that is run at a probe after a walk. Its record is of the smallest class.
    pub fn after_walk(machine: Machine) -> Self {
        let mut plan =
            Self::with_temps(machine, TEMP_SLOTS.start..u8::try_from(PART_SLOTS).unwrap_or(TEMP_SLOTS.start));
        plan.classes = RECORD_CLASSES.split_at(1).0;
        plan
    }

    /// Begins a plan that a walk runs for a node or a row, and gives `given` words to.
    pub fn part(machine: Machine, given: u8) -> Self {
        Self::with_temps(machine, given..u8::try_from(PART_SLOTS).unwrap_or(given))
    }

    fn with_temps(machine: Machine, temps: Range<u8>) -> Self {
        Self {
            machine,
            steps: Vec::new(),
            next_temp: temps.start,
            temps,
            record_len: size_of::<RecordHeader>(),
            rests_on: [0; SLOTS],
            classes: &RECORD_CLASSES,
            error: None,
        }
    }

    /// Returns a word that a walk gives to the plan of a node or a row.
    pub fn given(&mut self, number: u8) -> Slot {
        if number < self.temps.start { Slot(number) } else { self.fail(PlanError::TooManySlots) }
    }

    /// Makes room in the record of a plan that is run after a walk, for the number of nodes that the walk
    /// found in each list.
    pub fn nodes(&mut self) -> [Span; MAX_QUEUES] {
        std::array::from_fn(|_| self.place(8))
    }

    /// Marks the intermediate values so far: [`PlanBuilder::forget_since`] frees the room of later ones.
    pub fn mark(&self) -> Mark {
        Mark(self.next_temp)
    }

    pub fn forget_since(&mut self, mark: Mark) {
        self.next_temp = mark.0;
    }

    pub fn constant(&mut self, value: i64) -> Slot {
        let dst = self.temp();
        // This reads nothing: the difference of a word with itself is 0.
        self.push(StepOp::Scale, Step { dst: dst.0, index: dst.0, imm: -1, ..of(dst) });
        self.push(StepOp::Add, Step { dst: dst.0, imm: value, ..of(dst) });
        dst
    }

    /// Adds steps that are left out where `value` is 0; what they would load stays 0. They must not write to
    /// the record, whose bytes would be undefined.
    pub fn unless_zero(&mut self, value: Slot, steps: impl FnOnce(&mut Self)) {
        let at = self.steps.len();
        self.push(StepOp::Skip, of(value));
        steps(self);
        let left_out = self.steps.len() - at - 1;
        if self.steps.iter().skip(at).any(writes) {
            self.fail(PlanError::TooManySteps);
        }
        if let Some(step) = self.steps.get_mut(at) {
            step.imm = i64::try_from(left_out).unwrap_or(i64::MAX);
        }
    }

    /// Makes a word that begins as `value`; steps under [`PlanBuilder::unless_zero`] can [`PlanBuilder::set`]
    /// it.
    pub fn variable(&mut self, value: Slot) -> Slot {
        self.offset(value, 0)
    }

    /// Sets `variable` to `value` from here on.
    pub fn set(&mut self, variable: Slot, value: Slot) {
        let rested_on = self.rests_on(variable);
        self.push(StepOp::Add, Step { dst: variable.0, ..of(value) });
        if let Some(rests_on) = self.rests_on.get_mut(usize::from(variable.0)) {
            *rests_on |= rested_on;
        }
    }

    /// Computes `value`, less `limit` where it is not below that.
    pub fn wrap(&mut self, value: Slot, limit: Slot) -> Slot {
        self.compute(StepOp::Wrap, Step { index: limit.0, ..of(value) })
    }

    /// Computes the low 32 bits of a word, sign-extended.
    pub fn int32(&mut self, value: Slot) -> Slot {
        self.compute(StepOp::Int32, of(value))
    }

    /// Returns the value of a parameter at the probed function's entry.
    pub fn parameter(&mut self, location: &ParamLocation) -> Slot {
        match location {
            ParamLocation::Register(number) => match argument_slot(self.machine, *number) {
                Ok(slot) => Slot(slot),
                Err(error) => self.fail(error),
            },
            ParamLocation::EntryStack { sp_offset } => self.load(Slot(STACK_POINTER_SLOT), *sp_offset, 8),
            ParamLocation::Unknown(reason) => self.fail(PlanError::Parameter(reason.clone())),
        }
    }

    /// Returns the function's return value; only in plans of probes at its return.
    pub fn return_value(&self) -> Slot {
        Slot(0)
    }

    pub fn stack_pointer(&self) -> Slot {
        Slot(STACK_POINTER_SLOT)
    }

    /// Returns the value of a parameter of type `int` (or another of 32 bits or fewer), sign-extended.
    pub fn int_parameter(&mut self, location: &ParamLocation) -> Slot {
        let raw = self.parameter(location);
        self.int32(raw)
    }

    /// Loads the unsigned integer of `len` bytes (1, 2, 4 or 8) at `base + offset` in the target.
    pub fn load(&mut self, base: Slot, offset: i64, len: u16) -> Slot {
        self.compute(StepOp::Load, Step { len, imm: offset, ..of(base) })
    }

    /// Loads words of 8 bytes at these offsets from `base`, with one read where they lie close together.
    pub fn load_words(&mut self, base: Slot, offsets: &[i64]) -> Vec<Slot> {
        let first = offsets.iter().min().copied().unwrap_or(0);
        let last = offsets.iter().max().copied().unwrap_or(0);
        let words = usize::try_from(last - first).unwrap_or(usize::MAX) / 8 + 1;
        let aligned = offsets.iter().all(|offset| (offset - first) % 8 == 0);
        let start = usize::from(self.next_temp);
        let too_many = words > SLOTS_OF_WORDS || start + words > usize::from(self.temps.end);
        if !aligned || too_many || start >= SLOTS_OF_WORDS {
            return offsets.iter().map(|offset| self.load(base, *offset, 8)).collect();
        }
        let slots: Vec<Slot> = (0..words).map(|_| self.temp()).collect();
        let (dst, len) =
            (slots.first().map_or(0, |slot| slot.0), u16::try_from(8 * words).unwrap_or(u16::MAX));
        let rests_on = self.push(StepOp::LoadWords, Step { dst, len, imm: first, ..of(base) });
        let mut found = Vec::new();
        for (offset, slot) in (0..).map(|word| first + 8 * word).zip(slots) {
            if let Some(rests) = self.rests_on.get_mut(usize::from(slot.0)) {
                *rests = rests_on;
            }
            found.push((offset, slot));
        }
        let of = |wanted: &i64| found.iter().find(|(offset, _)| offset == wanted).map(|(_, slot)| *slot);
        offsets.iter().filter_map(of).collect()
    }

    /// Computes `base + offset`.
    pub fn offset(&mut self, base: Slot, offset: i64) -> Slot {
        self.compute(StepOp::Add, Step { imm: offset, ..of(base) })
    }

    /// Computes `base + index * scale`.
    pub fn scale(&mut self, base: Slot, index: Slot, scale: i64) -> Slot {
        self.compute(StepOp::Scale, Step { index: index.0, imm: scale, ..of(base) })
    }

    pub fn emit(&mut self, value: Slot) -> Span {
        let span = self.place(8);
        let rests_on = self.push(StepOp::Emit, Step { at: span.at, ..of(value) });
        Span { rests_on, ..span }
    }

    /// Copies `len` bytes at `base + offset` in the target into the record.
    pub fn copy(&mut self, base: Slot, offset: i64, len: u16) -> Span {
        let span = self.place(len);
        let (mut done, mut rests_on) = (0, 0);
        while done < len {
            let part = (len - done).min(COPY_STEP);
            let (at, imm) = (span.at.saturating_add(done), offset + i64::from(done));
            rests_on |= self.push(StepOp::Copy, Step { at, len: part, imm, ..of(base) });
            done += part;
        }
        Span { rests_on, ..span }
    }

    /// Puts the word into the record and, behind it, `len` bytes at `base + offset` in the target. Returns
    /// the places of both.
    pub fn emit_and_copy(&mut self, base: Slot, offset: i64, len: u16) -> (Span, Span) {
        if usize::from(len) > MAX_COPY {
            return (self.emit(base), self.copy(base, offset, len));
        }
        let (word, span) = (self.place(8), self.place(len));
        let rests_on = self.push(StepOp::EmitAndCopy, Step { at: word.at, len, imm: offset, ..of(base) });
        (Span { rests_on: self.rests_on(base), ..word }, Span { rests_on, ..span })
    }

    /// Copies several fields of one struct at once, with what lies between them. Returns the place of each.
    pub fn copy_together(&mut self, base: Slot, fields: &[(i64, u16)]) -> Vec<Span> {
        self.together(fields, |plan, first, len| ((), plan.copy(base, first, len))).1
    }

    /// [`PlanBuilder::emit_and_copy`] of several fields of one struct at once.
    pub fn emit_and_copy_together(&mut self, base: Slot, fields: &[(i64, u16)]) -> (Span, Vec<Span>) {
        self.together(fields, |plan, first, len| plan.emit_and_copy(base, first, len))
    }

    /// Has `copy` copy all bytes from the first field to the end of the last. Returns its result, and the
    /// place of each field.
    fn together<T>(
        &mut self,
        fields: &[(i64, u16)],
        copy: impl FnOnce(&mut Self, i64, u16) -> (T, Span),
    ) -> (T, Vec<Span>) {
        let first = fields.iter().map(|(offset, _)| *offset).min().unwrap_or(0);
        let end = fields.iter().map(|(offset, len)| *offset + i64::from(*len)).max().unwrap_or(0);
        let len = u16::try_from(end - first).unwrap_or_else(|_| {
            self.fail(PlanError::TooLong(usize::MAX));
            0
        });
        let (word, all) = copy(self, first, len);
        let span =
            |(offset, len): &(i64, u16)| all.part(u16::try_from(offset - first).unwrap_or(u16::MAX), *len);
        (word, fields.iter().map(span).collect())
    }

    /// Returns the plan, with the smallest class of record that it fits.
    pub fn finish(self) -> Result<FetchPlan, PlanError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if self.steps.len() > MAX_STEPS {
            return Err(PlanError::TooManySteps);
        }
        let fits_all = |class: &RecordClass| {
            self.record_len <= class.size && self.steps.iter().all(|step| fits(step, class.size))
        };
        let too_long = PlanError::TooLong(self.record_len);
        let class = self.classes.iter().position(fits_all).ok_or(too_long.clone())?;
        let mut plan = FetchPlan {
            record_len: u16::try_from(self.record_len).map_err(|_| too_long.clone())?,
            class: u16::try_from(class).map_err(|_| too_long)?,
            n_steps: u32::try_from(self.steps.len()).map_err(|_| PlanError::TooManySteps)?,
            ..FetchPlan::default()
        };
        for (slot, step) in plan.steps.iter_mut().zip(&self.steps) {
            *slot = *step;
        }
        Ok(plan)
    }

    fn place(&mut self, len: u16) -> Span {
        let at = u16::try_from(self.record_len).unwrap_or(u16::MAX);
        // Every span starts on a word, so that the header's successors stay aligned.
        self.record_len += usize::from(len).next_multiple_of(8);
        Span { at, len, rests_on: 0 }
    }

    fn temp(&mut self) -> Slot {
        if !self.temps.contains(&self.next_temp) {
            return self.fail(PlanError::TooManySlots);
        }
        self.next_temp += 1;
        Slot(self.next_temp - 1)
    }

    /// Adds a step that computes a new word.
    fn compute(&mut self, op: StepOp, step: Step) -> Slot {
        let dst = self.temp();
        self.push(op, Step { dst: dst.0, ..step });
        dst
    }

    /// Adds a step. Returns the steps that its result rests on, as bits.
    fn push(&mut self, op: StepOp, step: Step) -> u64 {
        let step = Step { op: op as u8, ..step };
        let number = u32::try_from(self.steps.len()).unwrap_or(u32::MAX);
        let own = match op {
            StepOp::Load | StepOp::Copy | StepOp::EmitAndCopy | StepOp::LoadWords => 1u64.checked_shl(number),
            _ => None,
        };
        let index = match op {
            StepOp::Scale | StepOp::Wrap => self.rests_on(Slot(step.index)),
            _ => 0,
        };
        let rests_on = self.rests_on(Slot(step.src)) | index | own.unwrap_or(0);
        if !writes(&step)
            && op != StepOp::Skip
            && let Some(dst) = self.rests_on.get_mut(usize::from(step.dst))
        {
            *dst = rests_on;
        }
        self.steps.push(step);
        rests_on
    }

    fn rests_on(&self, slot: Slot) -> u64 {
        self.rests_on.get(usize::from(slot.0)).copied().unwrap_or(0)
    }

    fn fail(&mut self, error: PlanError) -> Slot {
        self.error.get_or_insert(error);
        Slot(0)
    }
}

fn of(src: Slot) -> Step {
    Step { src: src.0, ..Step::default() }
}

/// Tells whether a step writes to the record.
fn writes(step: &Step) -> bool {
    [StepOp::Emit, StepOp::Copy, StepOp::EmitAndCopy].iter().any(|op| *op as u8 == step.op)
}

/// Tells whether the kernel side accepts a step: its own, coarser, bounds must show that the bytes end within
/// the record.
fn fits(step: &Step, record_size: usize) -> bool {
    let room = match step.op {
        op if op == StepOp::Copy as u8 => MAX_COPY,
        op if op == StepOp::EmitAndCopy as u8 => 8 + MAX_COPY,
        _ => 8,
    };
    usize::from(step.at) + room <= record_size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_longer_than_one_step_allows_is_split() {
        let mut builder = PlanBuilder::new(Machine::X86_64);
        let base = builder.parameter(&ParamLocation::Register(5));
        let span = builder.copy(base, 16, 600);
        let finished = builder.finish().unwrap();
        let copies: Vec<_> = finished.steps.iter().filter(|step| step.op == StepOp::Copy as u8).collect();
        assert_eq!(copies.iter().map(|step| step.len).collect::<Vec<_>>(), [256, 256, 88]);
        assert_eq!(copies.iter().map(|step| step.imm).collect::<Vec<_>>(), [16, 272, 528]);
        assert_eq!(usize::from(span.at), size_of::<RecordHeader>());
        let class = &RECORD_CLASSES[usize::from(finished.class)];
        assert!(copies.iter().all(|step| usize::from(step.at) + MAX_COPY <= class.size));
    }

    #[test]
    fn a_value_rests_on_every_read_on_its_way() {
        let mut builder = PlanBuilder::new(Machine::X86_64);
        let base = builder.parameter(&ParamLocation::Register(5));
        let other = builder.load(base, 8, 8); // step 0
        let index = builder.load(base, 16, 1); // step 1
        let element = builder.scale(base, index, 64); // step 2, no read
        let behind = builder.copy(element, 0, 300); // steps 3 and 4
        assert_eq!(builder.emit(base).rests_on, 0);
        assert_eq!(builder.emit(other).rests_on, 0b1);
        assert_eq!(builder.emit(element).rests_on, 0b10);
        assert_eq!(behind.rests_on, 0b1_1010);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut builder = PlanBuilder::new(Machine::X86_64);
        let base = builder.parameter(&ParamLocation::Register(5));
        builder.copy(base, 0, 4000);
        assert!(matches!(builder.finish(), Err(PlanError::TooLong(_))));

        let mut builder = PlanBuilder::new(Machine::X86_64);
        builder.parameter(&ParamLocation::Register(3)); // rbx carries no argument
        assert_eq!(builder.finish().unwrap_err(), PlanError::Register(3));

        let mut builder = PlanBuilder::new(Machine::Aarch64);
        let base = builder.parameter(&ParamLocation::Register(0));
        for _ in 0..=TEMP_SLOTS.len() {
            builder.load(base, 0, 8);
        }
        assert_eq!(builder.finish().unwrap_err(), PlanError::TooManySlots);
    }
}
