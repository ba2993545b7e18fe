//! Thread numbers by `pthread_t`, for versions that do not keep the kernel's number (3.8 to 3.10).
//!
//! A `pthread_t` is the address of the C library's description of the thread, which has the kernel's number
//! in it. The layout is not public, but the number's place has been the same for very long:
//!
//! - glibc, x86-64: 0x2d0 (`struct pthread`, nptl/descr.h: 704 bytes of header, a list node, `tid`; 2.4 to
//!   2.42). The words at 0 and 16 hold the address itself (`tcbhead_t`, sysdeps/x86_64/nptl/tls.h).
//! - glibc, AArch64: 0xd0 (24 words of header, a list node, `tid`).
//! - musl, x86-64: 48 (`struct pthread`, src/internal/pthread_impl.h; 1.1.20 and later). The word at 0 holds
//!   the address itself.
//!
//! The numbers found are to be compared with the process's threads, and count only if one is found for one
//! thread.

use nccl_library::elf::Machine;

use crate::Memory;

/// Offsets at which C libraries keep a thread's number.
pub const PLACES: [u32; 3] = [0x2d0, 48, 0xd0];

/// Returns numbers that may be the thread's, with their offsets: in the PID namespace of the process itself,
/// likely ones first.
pub fn thread_numbers(memory: &dyn Memory, machine: Machine, pthread: u64) -> Vec<(u32, u32)> {
    let word = |offset: u64| {
        let mut bytes = [0; 8];
        memory.read(pthread.checked_add(offset)?, &mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    let number = |offset: u32| {
        let mut bytes = [0; 4];
        memory.read(pthread.checked_add(offset.into())?, &mut bytes).ok()?;
        Some((offset, u32::from_le_bytes(bytes))).filter(|(_, number)| *number != 0)
    };
    let ([glibc, musl, glibc_on_arm], mut numbers) = (PLACES, Vec::new());
    match machine {
        Machine::X86_64 if word(0) == Some(pthread) => {
            if word(16) == Some(pthread) {
                numbers.extend(number(glibc));
            }
            numbers.extend(number(musl));
        }
        Machine::Aarch64 => numbers.extend(number(glibc_on_arm)),
        _ => {}
    }
    numbers
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn only_a_description_that_names_itself_is_believed() {
        let mut description = vec![0; 0x300];
        description[0x2d0..0x2d4].copy_from_slice(&4711u32.to_le_bytes());
        let at = 0x7f00_0000_0000u64;
        let memory = |description: &[u8]| HashMap::from([(at, description.to_vec())]);
        assert!(thread_numbers(&memory(&description), Machine::X86_64, at).is_empty());
        description[..8].copy_from_slice(&at.to_le_bytes());
        description[16..24].copy_from_slice(&at.to_le_bytes());
        assert_eq!(thread_numbers(&memory(&description), Machine::X86_64, at), [(0x2d0, 4711)]);
        assert!(thread_numbers(&memory(&description), Machine::X86_64, at + 8).is_empty());
        assert!(thread_numbers(&memory(&description), Machine::X86_64, 0).is_empty());
    }
}
