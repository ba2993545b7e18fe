//! What all targets do with a file, and what must never happen.
//!
//! `userspace/ncclflow/tests/corpus.rs` includes these files, too: it runs inputs that are kept without the fuzzer.

pub mod assembly;
pub mod dump;
pub mod kept_memory;
pub mod kernel_records;
pub mod merge;
pub mod proc_files;
pub mod python;
pub mod recording;
pub mod recording_blocks;
pub mod torch;
pub mod trace;

use std::{
    fs::File,
    io::Write as _,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use ::trace::kernel::probe;
use flow::session::Level;
use nccl_library::{
    elf::{Budget, Image},
    nccl::find_versions,
    symbols::{nccl_request_with_api, render, resolve},
};

/// Seconds of processor time that a hostile file may take, and as many more for each megabyte. Processor time, as the machine
/// may be busy. Who runs this without optimisation sets it to more.
pub static LIMIT: AtomicU32 = AtomicU32::new(1);

fn limit_of(bytes: usize) -> Duration {
    let limit = Duration::from_secs(u64::from(LIMIT.load(Ordering::Relaxed)));
    limit * (1 + u32::try_from(bytes >> 20).unwrap_or(64).min(64))
}

/// Does this and says what it took.
///
/// # Panics
/// If it took too long.
fn in_time(bytes: usize, work: impl FnOnce()) {
    let begun = processor_time();
    work();
    let taken = processor_time().saturating_sub(begun);
    assert!(taken < limit_of(bytes), "{bytes} bytes took {taken:?}");
}

/// Does everything that a caller does with a library. Errors are fine.
///
/// # Panics
/// If the library takes too long, or gets control characters into a report. That is what the fuzzer looks
/// for.
pub fn use_library(bytes: &[u8]) {
    let Ok(file) = in_memory(bytes) else { return };
    let begun = processor_time();
    let resolved = Image::from_file(file).and_then(|image| {
        let request = nccl_request_with_api();
        let resolution = resolve(&image, &request)?;
        Ok((find_versions(&image, &mut Budget::default()), render(&resolution, &request), resolution))
    });
    if let Ok((_, text, resolution)) = &resolved {
        let hostile = text.chars().find(|char| char.is_control() && *char != '\n');
        assert_eq!(hostile, None, "a control character in the report");
        for level in [Level::Api, Level::Flow, Level::Steps] {
            // Whatever the layouts say, plans are made of them or refused.
            let _plans = probe::compile(resolution, level, None);
        }
    }
    if let Err(error) = &resolved {
        assert!(!error.to_string().contains('\u{1b}'), "an escape in an error");
    }
    let taken = processor_time().saturating_sub(begun);
    assert!(taken < limit_of(bytes.len()), "{} bytes took {taken:?}", bytes.len());
}

/// A file in memory only.
fn in_memory(bytes: &[u8]) -> std::io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("library", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file)
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
