//! Machine code at the entry of a function, read to tell which parameter the function tests first.
//!
//! `SaveProxy` begins with `if (peer < 0) return`, in every version from 2.16 to 2.32. The register that is
//! tested tells how the compiler passes the parameters. Only the few instructions that compilers put before
//! the test are understood; at any other the answer is "not known".
//!
//! - The fifth parameter (`r8d`, `w4`): official builds from 2.18 on, where GCC 8 passes two addresses in
//!   place of `channel`.
//! - The fourth (`ecx`, `w3`): the declared order (GCC 12, clang 18), and official builds before 2.18.
//! - The third: the declared order before 2.18.
//!
//! In 2.16 and 2.17 `SaveProxy` has no `comm`, and the two addresses are of members, `peers` and `id`. No
//! debugging information says which, so each hit verifies that they are as far apart as the members are.

mod aarch64;
mod x86_64;

use crate::elf::Machine;

/// Returns the parameter, counting from 0, whose sign the code tests first, as it was at the entry: copies to
/// other registers are followed. `None` if there is no such test, or if something comes before it that is not
/// understood.
pub(super) fn first_sign_test(machine: Machine, code: &[u8]) -> Option<usize> {
    match machine {
        Machine::X86_64 => x86_64::first_sign_test(code),
        Machine::Aarch64 => aarch64::first_sign_test(code),
        Machine::Other(_) => None,
    }
}
