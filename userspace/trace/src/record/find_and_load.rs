//! The beginning of a recording: processes and layouts are found while the eBPF object is loaded.

use std::time::Duration;

use anyhow::{Result, anyhow};
use flow::session::{AttachReport, Level, ProbeStrategy};
use inspect::resolver;

use super::{
    options::{ProbeChoice, Targets},
    setup::{Setup, Wanted},
};
use crate::kernel::loader::{Attachment, Program};

/// Finds processes, libraries and layouts while the eBPF object and its programs are loaded.
pub(super) fn find_and_load(
    wanted: &Wanted<'_>,
    times: &mut AttachReport,
) -> (Result<Setup>, Result<Attachment>) {
    let options = wanted.options;
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| {
            let stacks = options.choice.stacks.is_some();
            let mut attachment =
                Attachment::new(options.buffer, options.links, options.development_log, stacks);
            if let Ok(attachment) = &mut attachment {
                let programs = likely_programs(options.choice);
                let programs = programs.map(|program| if stacks { program.with_stack() } else { program });
                // A refusal is reported when the program is needed.
                let _ = attachment.object.load_programs(&programs.collect::<Vec<_>>());
            }
            (attachment, ms(options.started.elapsed()))
        });
        // Starting the child takes milliseconds as well.
        resolver::prepare();
        let setup = match &options.targets {
            Targets::Pids(pids) => Setup::find(pids, wanted),
            Targets::All(_) => Ok(Setup::default()),
        };
        times.resolved_ms = ms(options.started.elapsed());
        let (attachment, loaded_ms) =
            loading.join().unwrap_or_else(|_| (Err(anyhow!("loading the eBPF object failed")), 0.0));
        times.loaded_ms = loaded_ms;
        (setup, attachment)
    })
}

/// Returns the programs that today's libraries need; others are loaded with their first probe.
fn likely_programs(choice: ProbeChoice) -> impl Iterator<Item = Program> {
    let ProbeChoice { level, strategy, returns, .. } = choice;
    let walks = level != Level::Api && strategy != Some(ProbeStrategy::PerCall);
    // Where plans are walked, graphs are followed, by a program without a walk.
    let programs = [(true, Program::Fetch), (walks, Program::Walk), (returns, Program::Return)];
    programs.into_iter().filter_map(|(is_likely, program)| is_likely.then_some(program))
}

/// Milliseconds, to the microsecond.
pub(super) fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
