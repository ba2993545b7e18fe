//! Absolute jumps written over functions of the library in this process's memory. The file is not changed.
//!
//! Runs once, before any NCCL call and while this is the only thread.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};

use crate::library::{Library, Symbol};

/// A jump and its target.
const JUMP: usize = code::JUMP.len() + 8;
/// A load of the first argument and a jump.
const JUMP_WITH_INDEX: usize = code::LOAD + JUMP;
/// `cudaErrorNotSupported`
const NOT_SUPPORTED: c_int = 801;

/// What happened to the runtime's functions.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) replaced: usize,
    pub(crate) refused: usize,
    /// Functions shorter than a jump, which were left as they are.
    pub(crate) left: Vec<String>,
}

struct Refusal {
    name: String,
    said: AtomicBool,
}

static REFUSALS: OnceLock<Vec<Refusal>> = OnceLock::new();

/// Replaces every documented runtime function: those in `replacements` by the bed's, all others by one that
/// prints its name once and answers "not supported", so that nothing of the runtime's private code can run.
pub(crate) fn replace_runtime(library: &Library, replacements: &HashMap<&str, usize>) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut refusals = Vec::new();
    for symbol in library.runtime_functions() {
        if let Some(target) = replacements.get(symbol.name.as_str()) {
            // Something shorter than a jump is not the runtime's function but a shim of NCCL's own
            // (nccl:v2.28.9-1:src/enhcompat.cc); a jump may run over into the function behind it.
            if symbol.size < JUMP {
                outcome.left.push(symbol.name.clone());
                continue;
            }
            write_code(symbol, &jump(*target))?;
            outcome.replaced += 1;
        } else if symbol.size < JUMP_WITH_INDEX {
            outcome.left.push(symbol.name.clone());
        } else {
            let mut code = code::load(u16::try_from(refusals.len())?).to_vec();
            code.extend(jump(refuse as *const () as usize));
            write_code(symbol, &code)?;
            refusals.push(Refusal { name: symbol.name.clone(), said: AtomicBool::new(false) });
            outcome.refused += 1;
        }
    }
    if REFUSALS.set(refusals).is_err() {
        bail!("the runtime was already replaced in this process");
    }
    Ok(outcome)
}

/// A jump through the 8 bytes behind its code.
fn jump(target: usize) -> [u8; JUMP] {
    let mut jump = [0; JUMP];
    let (code, address) = jump.split_at_mut(code::JUMP.len());
    code.copy_from_slice(&code::JUMP);
    address.copy_from_slice(&(target as u64).to_le_bytes());
    jump
}

#[cfg(target_arch = "x86_64")]
mod code {
    /// `jmp *0(%rip)`
    pub(super) const JUMP: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];
    /// `mov $index, %edi`
    pub(super) const LOAD: usize = 5;

    pub(super) fn load(index: u16) -> [u8; LOAD] {
        let [low, high] = index.to_le_bytes();
        [0xbf, low, high, 0, 0]
    }

    /// The processor sees by itself that code was written.
    pub(super) fn written(_start: usize, _end: usize) {}
}

#[cfg(target_arch = "aarch64")]
mod code {
    use std::ffi::c_void;

    /// `ldr x16, 8`, `br x16`
    pub(super) const JUMP: [u8; 8] = [0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6];
    /// `mov w0, #index`
    pub(super) const LOAD: usize = 4;

    pub(super) fn load(index: u16) -> [u8; LOAD] {
        (0x5280_0000 | u32::from(index) << 5).to_le_bytes()
    }

    /// Has the processor read code anew that was written.
    pub(super) fn written(start: usize, end: usize) {
        unsafe extern "C" {
            /// The compiler's runtime library has it.
            safe fn __clear_cache(start: *mut c_void, end: *mut c_void);
        }
        __clear_cache(start as *mut c_void, end as *mut c_void);
    }
}

extern "C" fn refuse(index: usize) -> c_int {
    // Only the low half of the register was written, at least on x86-64.
    let refusal = REFUSALS.get().and_then(|all| all.get(index & 0xffff_ffff));
    if let Some(refusal) = refusal
        && !refusal.said.swap(true, Ordering::Relaxed)
    {
        crate::say(&format!(
            "{} was called and is not emulated: answering cudaErrorNotSupported",
            refusal.name
        ));
    }
    NOT_SUPPORTED
}

fn write_code(symbol: &Symbol, new: &[u8]) -> Result<()> {
    // SAFETY: it reads a number that the kernel gave this process.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })?;
    let start = symbol.runtime_addr & !(page - 1);
    let length = (symbol.runtime_addr + new.len()).next_multiple_of(page) - start;
    protect(start, length, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)?;
    // SAFETY: the function is at least as long as `new`, its pages were just made writable, and no other
    // thread runs yet that could be inside it.
    unsafe { std::ptr::copy_nonoverlapping(new.as_ptr(), symbol.runtime_addr as *mut u8, new.len()) };
    code::written(symbol.runtime_addr, symbol.runtime_addr + new.len());
    protect(start, length, libc::PROT_READ | libc::PROT_EXEC)
}

fn protect(start: usize, length: usize, protection: c_int) -> Result<()> {
    // SAFETY: whole pages of the library's own text mapping.
    if unsafe { libc::mprotect(start as *mut libc::c_void, length, protection) } != 0 {
        bail!("mprotect: {}", std::io::Error::last_os_error());
    }
    Ok(())
}
