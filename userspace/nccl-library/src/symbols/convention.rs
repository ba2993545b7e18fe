//! Places of declared parameters by a platform's calling convention.
//!
//! Used only where the debugging information does not state them: for a copy that the compiler folded with an
//! identical function (it has a symbol and nothing else), and for unoptimised code. Never for clones: theirs
//! is not the declared list.

use super::Param;
use super::prototypes::integer;
use crate::dwarf::{DeclaredParam, TypeClass};
use crate::elf::Machine;
use crate::parameter::{ParamLocation, pushed_by_call};

/// Registers that pass floating point: xmm0 to xmm7, v0 to v7.
const FLOAT_REGISTERS: usize = 8;
/// Largest struct, in bytes, that is passed in registers in both conventions; larger ones go through memory.
const REGISTER_STRUCT: u64 = 16;

/// Returns the DWARF numbers of the registers that pass integers and addresses, in the order of the
/// parameters.
pub fn argument_registers(machine: Machine) -> &'static [u16] {
    match machine {
        // rdi rsi rdx rcx r8 r9 (System V x86-64 psABI, 3.2.3).
        Machine::X86_64 => &[5, 4, 1, 2, 8, 9],
        // x0 to x7 (AAPCS64, 6.8.2).
        Machine::Aarch64 => &[0, 1, 2, 3, 4, 5, 6, 7],
        Machine::Other(_) => &[],
    }
}

/// Returns where a C function finds one of its arguments, counted from 0, if all up to it are integers and
/// addresses.
pub fn integer_argument(machine: Machine, number: usize) -> ParamLocation {
    let declared = vec![integer(("", "", 8)); number.saturating_add(1)];
    locations(machine, &declared, true).swap_remove(number)
}

/// Returns the parameters with their locations by the convention.
pub(super) fn placed(machine: Machine, declared: Vec<DeclaredParam>, c_linkage: bool) -> Vec<Param> {
    let locations = locations(machine, &declared, c_linkage);
    declared.into_iter().zip(locations).map(|(declared, location)| Param::of(declared, location)).collect()
}

/// Returns the locations of the parameters in order. From the first parameter whose place depends on more
/// than its size, all are unknown.
fn locations(machine: Machine, params: &[DeclaredParam], c_linkage: bool) -> Vec<ParamLocation> {
    let pushed = pushed_by_call(machine);
    let mut stack = pushed.unwrap_or(0);
    let mut integers = argument_registers(machine).iter();
    let mut floats = 0;
    let mut lost = pushed.is_none().then_some("the calling convention of this processor is not known");
    let mut place = |param: &DeclaredParam| {
        if let Some(why) = lost {
            return ParamLocation::Unknown(why.to_owned());
        }
        let size = param.size.unwrap_or(0);
        match param.class {
            TypeClass::Integer => match integers.next() {
                Some(register) => ParamLocation::Register(*register),
                None => on_stack(&mut stack, 8),
            },
            TypeClass::Float if floats < FLOAT_REGISTERS => {
                floats += 1;
                ParamLocation::Unknown("it is in a floating point register".to_owned())
            }
            TypeClass::Float => on_stack(&mut stack, 8),
            // A C++ struct may be passed by address instead, which its size does not tell.
            TypeClass::Aggregate if c_linkage && machine == Machine::X86_64 && size > REGISTER_STRUCT => {
                on_stack(&mut stack, size)
            }
            TypeClass::Aggregate | TypeClass::Other => {
                lost = Some("how a struct is passed, here or before it, cannot be told from its size");
                ParamLocation::Unknown("how a struct is passed cannot be told from its size".to_owned())
            }
        }
    };
    params.iter().map(&mut place).collect()
}

fn on_stack(next: &mut i64, size: u64) -> ParamLocation {
    let sp_offset = *next;
    let size = size.checked_next_multiple_of(8).and_then(|size| i64::try_from(size).ok());
    match size.and_then(|size| next.checked_add(size)) {
        Some(end) => {
            *next = end;
            ParamLocation::EntryStack { sp_offset }
        }
        None => ParamLocation::Unknown("it is too large for the stack".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{DeclaredParam, Machine, TypeClass, integer_argument, locations};
    use crate::parameter::ParamLocation;

    fn params(classes: &[TypeClass]) -> Vec<DeclaredParam> {
        let param = |class: &TypeClass| DeclaredParam {
            name: String::new(),
            type_name: String::new(),
            size: Some(128),
            class: *class,
        };
        classes.iter().map(param).collect()
    }

    fn stack(sp_offset: i64) -> ParamLocation {
        ParamLocation::EntryStack { sp_offset }
    }

    #[test]
    fn all_reduce_has_its_stream_on_the_stack() {
        let found = locations(Machine::X86_64, &params(&[TypeClass::Integer; 8]), true);
        let registers: Vec<_> = [5, 4, 1, 2, 8, 9].map(ParamLocation::Register).into();
        assert_eq!(found[..6], registers);
        assert_eq!(found[6..], [stack(8), stack(16)]);
        for machine in [Machine::X86_64, Machine::Aarch64] {
            let found = locations(machine, &params(&[TypeClass::Integer; 11]), true);
            assert_eq!((0..11).map(|number| integer_argument(machine, number)).collect::<Vec<_>>(), found);
        }
        assert_eq!(locations(Machine::Aarch64, &params(&[TypeClass::Integer; 9]), true)[8], stack(0));
    }

    #[test]
    fn comm_init_rank_has_its_id_on_the_stack() {
        let list = [TypeClass::Integer, TypeClass::Integer, TypeClass::Aggregate, TypeClass::Integer];
        let found = locations(Machine::X86_64, &params(&list), true);
        assert_eq!(found[2..], [stack(8), ParamLocation::Register(1)]);
        let found = locations(Machine::X86_64, &params(&list), false);
        assert!(found[..2].iter().all(ParamLocation::is_known));
        assert!(!found[2..].iter().any(ParamLocation::is_known));
    }

    #[test]
    fn floats_do_not_take_integer_registers() {
        let found = locations(Machine::X86_64, &params(&[TypeClass::Float, TypeClass::Integer]), false);
        assert!(!found[0].is_known());
        assert_eq!(found[1], ParamLocation::Register(5));
    }

    #[test]
    fn other_processors_are_not_guessed() {
        let found = locations(Machine::Other(21), &params(&[TypeClass::Integer]), true);
        assert!(!found[0].is_known());
    }
}
