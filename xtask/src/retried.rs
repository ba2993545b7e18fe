//! Retries of what the network may disturb.

use std::{thread, time::Duration};

use anyhow::Result;

use crate::tool::say;

const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(5);

/// Fetches something, and again if that fails. Each failure is printed before the next try.
pub(crate) fn retried<T>(mut fetch: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..TRIES {
        match fetch() {
            Ok(fetched) => return Ok(fetched),
            Err(error) => say(&format!("{error:#}: trying again in {} s", PAUSE.as_secs())),
        }
        thread::sleep(PAUSE);
    }
    fetch()
}
