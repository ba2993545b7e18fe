//! SIGINT, SIGTERM and SIGHUP end the work cleanly; a second SIGINT or SIGTERM ends it at once, or, where a
//! recording is whole, only what is still made of it. SIGUSR1 asks for the next window.

use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::thread::CapabilitySet;
use tokio::signal::unix::{SignalKind, signal};

use super::{exit::Exit, terminal};
use inspect::privileges;
use trace::record::StopHandle;

/// Time that an immediate end waits for readers of the lines that were told.
const AT_ONCE: Duration = Duration::from_millis(200);

/// Says when a command ends, behind what it says that it does: after so long, if that was asked for, or with
/// Ctrl-C.
pub(super) fn end(duration: Option<Duration>) -> String {
    match duration {
        None => "; Ctrl-C ends it".to_owned(),
        Some(duration) => format!(" for {} s; Ctrl-C ends it earlier", duration.as_secs_f64()),
    }
}

/// Runs `work` on a thread of its own. `at_once` is done before a second signal ends the program.
pub(super) fn with_signals<T: Send + 'static>(
    work: impl FnOnce(&StopHandle) -> Result<T> + Send + 'static,
    at_once: impl Fn(),
) -> Result<T> {
    terminal::tell_in_background();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting tokio")?;
    let outcome = runtime.block_on(async {
        let stop = StopHandle::new()?;
        let mut signals = (
            signal(SignalKind::interrupt()).context("listening for SIGINT")?,
            signal(SignalKind::terminate()).context("listening for SIGTERM")?,
            signal(SignalKind::hangup()).context("listening for SIGHUP")?,
            signal(SignalKind::user_defined1()).context("listening for SIGUSR1")?,
        );
        let handle = stop.clone();
        let mut work = tokio::task::spawn_blocking(move || work(&handle));
        // The thread has been started, with our capabilities. Here signals are waited for, and lines printed.
        privileges::keep_only(CapabilitySet::empty());
        let mut times = 0;
        loop {
            tokio::select! {
                outcome = &mut work => break outcome.context("the recording's thread failed")?,
                _ = signals.0.recv() => times += 1,
                _ = signals.1.recv() => times += 1,
                _ = signals.2.recv() => {}
                _ = signals.3.recv() => {
                    stop.rotate();
                    continue;
                }
            }
            stop.stop();
            let is_only_files = times == 2 && stop.leave_files();
            if times >= 2 && !is_only_files {
                at_once();
                tell!("ending now; the kernel removes the probes");
                terminal::flush_told(AT_ONCE);
                std::process::exit(Exit::Interrupted as i32);
            }
        }
    });
    // Before anything goes to standard output.
    terminal::tell_all();
    outcome
}
