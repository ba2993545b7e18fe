//! The program's calls of NCCL, with result and duration: a truth independent of NCCL's own log and of the
//! tracer.

use std::ffi::c_int;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// A line of the log. Nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Serialize)]
struct Line {
    function: &'static str,
    pid: u32,
    tid: i32,
    begin_ns: u64,
    end_ns: u64,
    /// `ncclResult_t`
    code: c_int,
}

/// The file of this process's calls, or none.
#[derive(Debug, Default)]
pub(crate) struct CallLog(Option<File>);

impl CallLog {
    /// `FILE.<pid>`.
    pub(crate) fn create(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self(None)) };
        let path = format!("{}.{}", path.display(), std::process::id());
        let file = File::options().create_new(true).append(true).open(&path);
        Ok(Self(Some(file.with_context(|| format!("making `{path}`"))?)))
    }

    /// Makes a call and writes its line at once and as a whole, because the process can end
    /// without running destructors.
    pub(crate) fn call(&self, function: &'static str, call: impl FnOnce() -> c_int) -> c_int {
        let Some(mut file) = self.0.as_ref() else { return call() };
        let begin_ns = now();
        let code = call();
        let end_ns = now();
        // SAFETY: takes no memory.
        let tid = unsafe { libc::gettid() };
        let line = Line { function, pid: std::process::id(), tid, begin_ns, end_ns, code };
        let written = serde_json::to_string(&line)
            .map_err(anyhow::Error::from)
            .and_then(|line| Ok(file.write_all((line + "\n").as_bytes())?));
        if let Err(error) = written {
            crate::say(&format!("the log of calls: {error}"));
        }
        code
    }
}

/// CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local that the call fills.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
