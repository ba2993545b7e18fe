//! Machine code at the entry of a function, read to tell which parameter the function tests first.
//!
//! `SaveProxy` begins with `if (peer < 0) return`, in every version from 2.16 to 2.32. The register that is
//! tested tells how the compiler passes the parameters. Only the few instructions that compilers put before
//! the test are understood; at any other the answer is "not known".

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
