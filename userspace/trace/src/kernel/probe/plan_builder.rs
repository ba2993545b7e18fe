//! Assembles a [`FetchPlan`], and checks what the kernel side does not check.

use std::{fmt, ops::Range};

use anyhow::{Error, Result, anyhow};

use ncclflow_common::{
    ARG_SLOTS, FetchPlan, MAX_COPY, MAX_QUEUES, MAX_STEPS, PART_SLOTS, RECORD_CLASSES, RecordClass,
    RecordHeader, SLOTS, STACK_POINTER_SLOT, Step, StepOp, TEMP_SLOTS,
};

use flow::wire::Span;
use nccl_library::{
    elf::Machine,
    layouts::Layouts,
    parameter::ParamLocation,
    symbols::{Resolution, argument_registers},
};

/// [`MAX_COPY`] as steps carry it.
const COPY_STEP: u16 = 256;
const _: () = assert!(COPY_STEP as usize == MAX_COPY);

/// Words that one [`StepOp::LoadWords`] of a probe's plan can load, and slots that it can begin at.
const SLOTS_OF_WORDS: usize = SLOTS / 2;

/// A word that the plan computes in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot(u8);

impl Slot {
    /// The function's return value; only in plans of probes at its return.
    pub(super) const RETURN_VALUE: Self = Self(0);
    pub(super) const STACK_POINTER: Self = Self(STACK_POINTER_SLOT);

    pub(super) fn number(self) -> u8 {
        self.0
    }
}

/// Builds a plan step by step. Errors are kept and reported by [`PlanBuilder::finish`].
#[derive(Debug)]
pub(super) struct PlanBuilder<'a> {
    machine: Machine,
    pub(super) layouts: &'a Layouts,
    steps: Vec<Step>,
    temps: Range<u8>,
    next_temp: u8,
    record_len: usize,
    /// Steps that the value of each slot rests on, as bits.
    rests_on: [u64; SLOTS],
    /// Classes that the plan's record can have.
    classes: &'static [RecordClass],
    /// What the library lacks for the plan, which says more than what is wrong with the plan.
    lack: Option<Error>,
    error: Option<Error>,
}

impl<'a> PlanBuilder<'a> {
    /// Begins a plan that is run at a probe.
    pub(super) fn new(resolution: &'a Resolution) -> Self {
        Self::with_temps(resolution.machine, &resolution.layouts, TEMP_SLOTS)
    }

    /// Begins a plan that is run at a probe after a walk. Its record is of the smallest class.
    pub(super) fn after_walk(resolution: &'a Resolution) -> Self {
        let plan = Self::part(resolution, TEMP_SLOTS.start);
        Self { classes: RECORD_CLASSES.split_at(1).0, ..plan }
    }

    /// Begins a plan that a walk runs for a node or a row, and gives `given` words to.
    pub(super) fn part(resolution: &'a Resolution, given: u8) -> Self {
        let end = u8::try_from(PART_SLOTS).unwrap_or(given);
        Self::with_temps(resolution.machine, &resolution.layouts, given..end)
    }

    fn with_temps(machine: Machine, layouts: &'a Layouts, temps: Range<u8>) -> Self {
        Self {
            machine,
            layouts,
            steps: Vec::new(),
            next_temp: temps.start,
            temps,
            record_len: size_of::<RecordHeader>(),
            rests_on: [0; SLOTS],
            classes: &RECORD_CLASSES,
            lack: None,
            error: None,
        }
    }

    /// Returns a word that a walk gives to the plan of a node or a row.
    pub(super) fn given(&mut self, number: u8) -> Slot {
        if number < self.temps.start { Slot(number) } else { self.fail(too_many_slots()) }
    }

    /// Makes room in the record of a plan that is run after a walk, for the number of nodes that the walk
    /// found in each list.
    pub(super) fn nodes(&mut self) -> [Span; MAX_QUEUES] {
        std::array::from_fn(|_| self.place(8))
    }

    /// Adds steps, and then frees the room of their intermediate values.
    pub(super) fn freeing<T>(&mut self, steps: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.next_temp;
        let result = steps(self);
        self.next_temp = before;
        result
    }

    pub(super) fn constant(&mut self, value: i64) -> Slot {
        let dst = self.temp();
        // This reads nothing: the difference of a word with itself is 0.
        self.push(StepOp::Scale, Step { dst: dst.0, index: dst.0, imm: -1, ..of(dst) });
        self.push(StepOp::Add, Step { dst: dst.0, imm: value, ..of(dst) });
        dst
    }

    /// Adds steps that are left out where `value` is 0; what they would load stays 0. They must not write to
    /// the record, whose bytes would be undefined.
    pub(super) fn unless_zero(&mut self, value: Slot, steps: impl FnOnce(&mut Self)) {
        let at = self.steps.len();
        self.push(StepOp::Skip, of(value));
        steps(self);
        let left_out = self.steps.len() - at - 1;
        if self.steps.iter().skip(at).any(writes) {
            self.fail(too_many_steps());
        }
        if let Some(step) = self.steps.get_mut(at) {
            step.imm = i64::try_from(left_out).unwrap_or(i64::MAX);
        }
    }

    /// Sets `variable` to `value` from here on, also under [`PlanBuilder::unless_zero`].
    pub(super) fn set(&mut self, variable: Slot, value: Slot) {
        let rested_on = self.rests_on(variable);
        self.push(StepOp::Add, Step { dst: variable.0, ..of(value) });
        if let Some(rests_on) = self.rests_on.get_mut(usize::from(variable.0)) {
            *rests_on |= rested_on;
        }
    }

    /// Returns a word that is 0 until steps load it, also under [`PlanBuilder::unless_zero`].
    pub(super) fn reserve(&mut self) -> Slot {
        self.temp()
    }

    /// Loads `len` bytes into a word that was reserved.
    pub(super) fn load_into(&mut self, word: Slot, base: Slot, offset: i64, len: u16) {
        self.push(StepOp::Load, Step { dst: word.0, len, imm: offset, ..of(base) });
    }

    /// Keeps a word for this thread and for its process.
    pub(super) fn keep(&mut self, word: Slot) {
        self.push(StepOp::Keep, of(word));
    }

    /// Takes the word that was kept for this thread, or for any of its process; 0: there is none.
    pub(super) fn take(&mut self, of_process: bool) -> Slot {
        let word = self.temp();
        self.push(StepOp::Take, Step { dst: word.0, imm: i64::from(of_process), ..Step::default() });
        word
    }

    /// Adds a word, and a number, to a word that was reserved.
    pub(super) fn add_to(&mut self, word: Slot, other: Slot, number: i64) {
        self.push(StepOp::Scale, Step { dst: word.0, index: other.0, imm: 1, ..of(word) });
        self.push(StepOp::Add, Step { dst: word.0, imm: number, ..of(word) });
    }

    /// Makes the words with the function's arguments 0, for other use: the arguments are gone.
    pub(super) fn free_arguments(&mut self) -> [Slot; ARG_SLOTS] {
        let mut number = 0;
        [(); ARG_SLOTS].map(|()| {
            let slot = Slot(number);
            number += 1;
            // The difference of a word with itself is 0.
            self.push(StepOp::Scale, Step { dst: slot.0, index: slot.0, imm: -1, ..of(slot) });
            if let Some(rests_on) = self.rests_on.get_mut(usize::from(slot.0)) {
                *rests_on = 0;
            }
            slot
        })
    }

    /// Loads as many words at `base` into the words that had the arguments.
    pub(super) fn load_words_into(&mut self, words: [Slot; ARG_SLOTS], base: Slot) {
        let len = u16::try_from(8 * words.len()).unwrap_or(u16::MAX);
        let rests_on = self.push(StepOp::LoadWords, Step { dst: 0, len, ..of(base) });
        for word in words {
            if let Some(rests) = self.rests_on.get_mut(usize::from(word.0)) {
                *rests = rests_on;
            }
        }
    }

    /// Returns how many steps there are, and how many bytes the record has.
    pub(super) fn extent(&self) -> (u32, u16) {
        let steps = u32::try_from(self.steps.len()).unwrap_or(u32::MAX);
        (steps, u16::try_from(self.record_len).unwrap_or(u16::MAX))
    }

    /// Computes `value`, less `limit` where it is not below that.
    pub(super) fn wrap(&mut self, value: Slot, limit: Slot) -> Slot {
        self.compute(StepOp::Wrap, Step { index: limit.0, ..of(value) })
    }

    /// Computes the low 32 bits of a word, sign-extended.
    pub(super) fn int32(&mut self, value: Slot) -> Slot {
        self.compute(StepOp::Int32, of(value))
    }

    /// Returns the value of a parameter at the probed function's entry.
    pub(super) fn value_at(&mut self, location: &ParamLocation) -> Slot {
        match location {
            ParamLocation::Register(number) => self.argument(*number),
            ParamLocation::EntryStack { sp_offset } => self.load(Slot::STACK_POINTER, *sp_offset, 8),
            ParamLocation::Unknown(reason) => self.fail(anyhow!("{reason}")),
        }
    }

    /// Returns a register's value when the plan begins. The register is given by its DWARF number (x86-64:
    /// System V psABI, figure 3.36; aarch64: AADWARF64 §4.1).
    fn argument(&mut self, register: u16) -> Slot {
        let stack_pointer = match self.machine {
            Machine::X86_64 => 7,
            Machine::Aarch64 => 31,
            Machine::Other(_) => {
                return self.fail(anyhow!("no calling convention known for {:?}", self.machine));
            }
        };
        if register == stack_pointer {
            return Slot::STACK_POINTER;
        }
        let mut slots = (0..).zip(argument_registers(self.machine));
        match slots.find(|(_, known)| **known == register) {
            Some((slot, _)) => Slot(slot),
            None => self.fail(anyhow!("DWARF register {register} carries no argument")),
        }
    }

    /// Loads the unsigned integer of `len` bytes (1, 2, 4 or 8) at `base + offset` in the target.
    pub(super) fn load(&mut self, base: Slot, offset: i64, len: u16) -> Slot {
        self.compute(StepOp::Load, Step { len, imm: offset, ..of(base) })
    }

    /// Loads words of 8 bytes at these offsets from `base`, with one read where they lie close together.
    pub(super) fn load_words<const N: usize>(&mut self, base: Slot, offsets: [i64; N]) -> [Slot; N] {
        let first = offsets.into_iter().min().unwrap_or(0);
        let last = offsets.into_iter().max().unwrap_or(0);
        let words = usize::try_from(last - first).unwrap_or(usize::MAX) / 8 + 1;
        let aligned = offsets.iter().all(|offset| (offset - first) % 8 == 0);
        let start = usize::from(self.next_temp);
        let too_many = words > SLOTS_OF_WORDS || start + words > usize::from(self.temps.end);
        if !aligned || too_many || start >= SLOTS_OF_WORDS {
            return offsets.map(|offset| self.load(base, offset, 8));
        }
        let dst = self.next_temp;
        let len = u16::try_from(8 * words).unwrap_or(u16::MAX);
        let rests_on = self.push(StepOp::LoadWords, Step { dst, len, imm: first, ..of(base) });
        for _ in 0..words {
            let slot = self.temp();
            if let Some(rests) = self.rests_on.get_mut(usize::from(slot.0)) {
                *rests = rests_on;
            }
        }
        offsets.map(|offset| Slot(dst + u8::try_from((offset - first) / 8).unwrap_or(0)))
    }

    /// Computes `base + offset`.
    pub(super) fn offset(&mut self, base: Slot, offset: i64) -> Slot {
        self.compute(StepOp::Add, Step { imm: offset, ..of(base) })
    }

    /// Computes `base + index * scale`.
    pub(super) fn scale(&mut self, base: Slot, index: Slot, scale: i64) -> Slot {
        self.compute(StepOp::Scale, Step { index: index.0, imm: scale, ..of(base) })
    }

    pub(super) fn emit(&mut self, value: Slot) -> Span {
        let span = self.place(8);
        let rests_on = self.push(StepOp::Emit, Step { at: span.at, ..of(value) });
        Span { rests_on, ..span }
    }

    /// Copies `len` bytes at `base + offset` in the target into the record.
    pub(super) fn copy(&mut self, base: Slot, offset: i64, len: u16) -> Span {
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
    pub(super) fn emit_and_copy(&mut self, base: Slot, offset: i64, len: u16) -> (Span, Span) {
        if usize::from(len) > MAX_COPY {
            return (self.emit(base), self.copy(base, offset, len));
        }
        let (word, span) = (self.place(8), self.place(len));
        let rests_on = self.push(StepOp::EmitAndCopy, Step { at: word.at, len, imm: offset, ..of(base) });
        (Span { rests_on: self.rests_on(base), ..word }, Span { rests_on, ..span })
    }

    /// Returns the plan, with the smallest class of record that it fits.
    pub(super) fn finish(self) -> Result<FetchPlan> {
        if let Some(error) = self.lack.or(self.error) {
            return Err(error);
        }
        if self.steps.len() > MAX_STEPS {
            return Err(too_many_steps());
        }
        let fits_all = |class: &RecordClass| {
            self.record_len <= class.size && self.steps.iter().all(|step| fits(step, class.size))
        };
        let too_long = || too_long(self.record_len);
        let class = self.classes.iter().position(fits_all).ok_or_else(too_long)?;
        let mut plan = FetchPlan {
            record_len: u16::try_from(self.record_len).map_err(|_| too_long())?,
            class: u16::try_from(class).map_err(|_| too_long())?,
            n_steps: u32::try_from(self.steps.len()).map_err(|_| too_many_steps())?,
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
            return self.fail(too_many_slots());
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

    /// Keeps the error that the library lacks something, if it is the first.
    pub(super) fn lack<T: Default>(&mut self, error: impl Into<Error>) -> T {
        self.lack.get_or_insert_with(|| error.into());
        T::default()
    }

    fn fail(&mut self, error: Error) -> Slot {
        self.error.get_or_insert(error);
        Slot::default()
    }
}

fn too_many_steps() -> Error {
    anyhow!("what the probe reads takes more than {MAX_STEPS} steps")
}

fn too_many_slots() -> Error {
    anyhow!("what the probe reads takes more than {} intermediate values", TEMP_SLOTS.len())
}

/// Says that the record fits neither the largest class nor, where it has to, the smallest.
pub(super) fn too_long(bytes: impl fmt::Display) -> Error {
    anyhow!("the record would be {bytes} bytes long")
}

fn of(src: Slot) -> Step {
    Step { src: src.0, ..Step::default() }
}

/// Tells whether a step writes to the record, or outside of the plan's words.
fn writes(step: &Step) -> bool {
    [StepOp::Emit, StepOp::Copy, StepOp::EmitAndCopy, StepOp::Keep].iter().any(|op| *op as u8 == step.op)
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
    use std::collections::BTreeMap;

    use super::*;

    fn begun(machine: Machine) -> PlanBuilder<'static> {
        static LAYOUTS: Layouts = Layouts { structs: BTreeMap::new(), enums: BTreeMap::new() };
        PlanBuilder::with_temps(machine, &LAYOUTS, TEMP_SLOTS)
    }

    #[test]
    fn a_copy_longer_than_one_step_allows_is_split() {
        let mut builder = begun(Machine::X86_64);
        let base = builder.value_at(&ParamLocation::Register(5));
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
        let mut builder = begun(Machine::X86_64);
        let base = builder.value_at(&ParamLocation::Register(5));
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
        let mut builder = begun(Machine::X86_64);
        let base = builder.value_at(&ParamLocation::Register(5));
        builder.copy(base, 0, 4000);
        assert!(builder.finish().unwrap_err().to_string().contains("bytes long"));

        let mut builder = begun(Machine::X86_64);
        builder.value_at(&ParamLocation::Register(3)); // rbx carries no argument
        assert_eq!(builder.finish().unwrap_err().to_string(), "DWARF register 3 carries no argument");

        let mut builder = begun(Machine::Aarch64);
        let base = builder.value_at(&ParamLocation::Register(0));
        for _ in 0..=TEMP_SLOTS.len() {
            builder.load(base, 0, 8);
        }
        assert_eq!(builder.finish().unwrap_err().to_string(), too_many_slots().to_string());
    }
}
