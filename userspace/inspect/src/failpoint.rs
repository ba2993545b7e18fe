//! Faults for tests. A debug build fails in the place that `NCCLFLOW_FAULT` names; a release build does not
//! look.
//!
//! The variable is `PLACE:panic`, `PLACE:error` or `PLACE:hang`, and `:N` for the N-th time that the place is
//! reached (from 1). With `:N:FILE` times are counted from when this file exists: a test makes it when it is
//! ready. Places are the arguments of calls of [`here`].

use std::io;

/// Fails if this place is to fail now.
///
/// # Errors
/// With `PLACE:error`, an error that says so.
///
/// # Panics
/// With `PLACE:panic`.
#[cfg(debug_assertions)]
pub fn here(place: &str) -> io::Result<()> {
    use std::{
        path::PathBuf,
        sync::{
            OnceLock,
            atomic::{AtomicU64, Ordering},
        },
        thread,
        time::Duration,
    };

    struct Wanted {
        place: String,
        kind: String,
        at: u64,
        from: Option<PathBuf>,
    }

    static WANTED: OnceLock<Option<Wanted>> = OnceLock::new();
    static TIMES: AtomicU64 = AtomicU64::new(0);
    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var("NCCLFLOW_FAULT").ok()?;
        let mut parts = text.splitn(4, ':').map(str::to_owned);
        let (place, kind) = (parts.next()?, parts.next()?);
        let at = parts.next().map_or(Some(1), |times| times.parse().ok())?;
        Some(Wanted { place, kind, at, from: parts.next().map(PathBuf::from) })
    });
    let Some(wanted) = wanted.as_ref().filter(|wanted| wanted.place == place) else { return Ok(()) };
    if wanted.from.as_ref().is_some_and(|file| !file.exists()) {
        return Ok(());
    }
    if TIMES.fetch_add(1, Ordering::Relaxed) + 1 != wanted.at {
        return Ok(());
    }
    match wanted.kind.as_str() {
        "error" => Err(io::Error::other(format!("NCCLFLOW_FAULT: an error in `{place}`"))),
        "hang" => loop {
            thread::sleep(Duration::from_secs(3600));
        },
        _ => panic!("NCCLFLOW_FAULT: a panic in `{place}`"),
    }
}

#[cfg(not(debug_assertions))]
#[inline]
#[expect(clippy::unnecessary_wraps, reason = "as in a debug build")]
pub const fn here(_place: &str) -> io::Result<()> {
    Ok(())
}
