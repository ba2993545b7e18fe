//! Prototypes: the parameters that NCCL's source declares for the functions that ncclflow uses, for libraries
//! without debugging information.
//!
//! A function keeps the platform's calling convention if it is called by code that the compiler does not see
//! while it compiles the function: from another source file, or through a pointer. `SaveProxy` is called from
//! its own file only, so the compiler may pass its parameters as it likes; [`save_proxy`] tells from its code
//! which way was taken.

use super::catalog::{COMM, CONN_INDEX, FUNCTIONS, JUST_INQUIRE, OP, PEER, TYPE};
use super::request::{Called, Declared};
use super::{Param, convention};
use crate::dwarf::{DeclaredParam, TypeClass};
use crate::elf::Machine;
use crate::{nccl::NcclVersion, parameter::ParamLocation};

/// Returns the declared parameters of a function that keeps the calling convention. `is_static` if its symbol
/// says that it is local to its source file.
pub(super) fn of(name: &str, is_static: bool) -> Option<Vec<DeclaredParam>> {
    let keeps = |called| called == Called::ByPointer || (called == Called::FromOtherFiles && !is_static);
    let entry = FUNCTIONS.iter().find(|entry| entry.name == name && keeps(entry.called))?;
    Some(entry.params.iter().copied().map(integer).collect())
}

pub(super) fn integer((name, type_name, size): Declared) -> DeclaredParam {
    let (name, type_name) = (name.to_owned(), type_name.to_owned());
    DeclaredParam { name, type_name, size: Some(size), class: TypeClass::Integer }
}

/// Returns how the parameters of `SaveProxy` arrive. `tested` is the argument, counting from 0, whose sign
/// its code tests first: that is the peer.
///
/// Declared are `(channel, type, peer, op, connIndex, justInquire)` up to 2.17, with `comm` before them from
/// 2.18 on. GCC 8, which the official libraries are built with, passes two addresses within `channel` in its
/// place (an `.isra` clone); GCC 12 and clang 18 keep the declared list. `is_clone` is what the symbol says,
/// if there is one.
pub(super) fn save_proxy(
    machine: Machine,
    version: NcclVersion,
    tested: usize,
    is_clone: Option<bool>,
) -> Option<Vec<Param>> {
    let has_comm = (version.major, version.minor) >= (2, 18);
    let clone = match (has_comm, tested) {
        (true, 4) | (false, 3) => true,
        (true, 3) | (false, 2) => false,
        _ => return None,
    };
    if is_clone.is_some_and(|stated| stated != clone) {
        return None;
    }
    let channel = ("channel", "ncclChannel*", 8);
    let mut declared = Vec::new();
    declared.extend(has_comm.then_some(COMM));
    declared.push(channel);
    declared.extend(clone.then_some(channel));
    declared.extend([TYPE, PEER, OP, CONN_INDEX, JUST_INQUIRE]);
    let declared: Vec<DeclaredParam> = declared.into_iter().map(integer).collect();
    let mut params = convention::placed(machine, declared, true);
    for param in params.iter_mut().filter(|param| clone && param.name == "channel") {
        let why = "the compiler passes two addresses within it instead";
        param.location = ParamLocation::Unknown(why.to_owned());
    }
    Some(params)
}

#[cfg(test)]
mod tests {
    use super::{Machine, of, save_proxy};
    use crate::{nccl::NcclVersion, parameter::ParamLocation};

    const RDX: usize = 2;
    const RCX: usize = 3;
    const R8: usize = 4;

    fn places(minor: u32, tested: usize, is_clone: Option<bool>) -> Option<Vec<(String, ParamLocation)>> {
        let version = NcclVersion { major: 2, minor, patch: 0 };
        let params = save_proxy(Machine::X86_64, version, tested, is_clone)?;
        Some(params.into_iter().map(|param| (param.name, param.location)).collect())
    }

    fn place(minor: u32, tested: usize, name: &str) -> ParamLocation {
        let places = places(minor, tested, None).unwrap();
        places.into_iter().find(|(known, _)| known == name).unwrap().1
    }

    #[test]
    fn the_four_forms() {
        use ParamLocation::Register;
        let stack = |sp_offset| ParamLocation::EntryStack { sp_offset };
        for (minor, tested, expected) in [
            (27, R8, [Register(2), Register(8), Register(9), stack(8), stack(16)]),
            (27, RCX, [Register(1), Register(2), Register(8), Register(9), stack(8)]),
            (17, RCX, [Register(1), Register(2), Register(8), Register(9), stack(8)]),
            (17, RDX, [Register(4), Register(1), Register(2), Register(8), Register(9)]),
        ] {
            let found =
                ["type", "peer", "op", "connIndex", "justInquire"].map(|name| place(minor, tested, name));
            assert_eq!(found, expected, "2.{minor}");
        }
        assert_eq!(place(27, R8, "comm"), Register(5));
        assert_eq!(place(27, RCX, "channel"), Register(4));
        assert_eq!(place(17, RDX, "channel"), Register(5));
    }

    #[test]
    fn all_parameters_fit_into_the_registers_of_arm() {
        let version = NcclVersion { major: 2, minor: 28, patch: 9 };
        let params = save_proxy(Machine::Aarch64, version, 4, Some(true)).unwrap();
        let of = |name: &str| &params.iter().find(|param| param.name == name).unwrap().location;
        // As the debugging information of the official library has it.
        for (name, register) in
            [("comm", 0), ("type", 3), ("peer", 4), ("op", 5), ("connIndex", 6), ("justInquire", 7)]
        {
            assert_eq!(*of(name), ParamLocation::Register(register), "{name}");
        }
    }

    #[test]
    fn contradictions_are_not_known() {
        assert!(places(27, R8, Some(false)).is_none() && places(27, RCX, Some(true)).is_none());
        assert!(places(17, R8, None).is_none() && places(27, RDX, None).is_none());
        assert!(places(27, R8, Some(true)).is_some());
    }

    #[test]
    fn a_local_function_may_have_any_convention() {
        assert!(of("ncclProxySaveOp", false).is_some() && of("ncclProxySaveOp", true).is_none());
        assert!(of("hostStreamPlanCallback", true).is_some());
        assert!(of("SaveProxy", true).is_none() && of("SaveProxy", false).is_none());
    }
}
