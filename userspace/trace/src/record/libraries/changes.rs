//! Changes of files that have probes.

use std::{mem, time::Duration};

use flow::session::ChangedLibrary;
use inspect::{clock::now_ns, process::MappedLibrary};
use rustix::time::ClockId;

use super::{
    super::{
        file_watch::{ticks_now, ticks_of},
        setup::Change,
    },
    Libraries, Traced, give_back, name_of,
};

impl Libraries<'_> {
    /// Returns the time until the next look; `None` if no file has probes.
    pub(in crate::record) fn watch_timeout(&self) -> Option<Duration> {
        self.known.iter().any(|library| library.traced.is_ok()).then(|| self.watch.timeout())
    }

    /// Takes the probes off files that are no longer what was resolved.
    pub(in crate::record) fn look_for_changes(&mut self) {
        let Self { known, reaper, changed, gone, unused, unseen, .. } = self;
        *unseen = None;
        for (index, library) in known.iter_mut().enumerate() {
            let (Some(file), Ok(Traced { library: in_use, .. })) = (&mut library.file, &mut library.traced)
            else {
                continue;
            };
            let why = match in_use.look(&mut library.unchanged_ns, unseen) {
                Ok(None) => continue,
                Ok(Some(status)) => {
                    // Its content is as resolved.
                    (file.id, in_use.file.id) = (status.id, status.id);
                    continue;
                }
                Err(why) => why,
            };
            // Whoever was started before its ctime can have the former content; without one, before now.
            let since = if matches!(why, Change::Changed) { 0 } else { ticks_now() };
            changed.add(name_of(file), since);
            let why = why.to_string();
            gone.push(ChangedLibrary {
                library: index,
                path: file.shown(),
                seen_ns: now_ns(ClockId::Monotonic),
                what: why.clone(),
                pids: Vec::new(),
                unchanged_until_ns: library.unchanged_ns,
            });
            library.file = None;
            if let Ok(Traced { links, cookies, meaning, .. }) = mem::replace(&mut library.traced, Err(why)) {
                reaper.take(links);
                // Whoever changes a file again and again uses none up.
                give_back(unused, meaning, cookies);
            }
        }
    }

    /// Tells whether a process started at `started` can have the former content of a changed file mapped.
    pub(super) fn may_have_former(&self, file: &MappedLibrary, started: Option<u64>) -> bool {
        let since = self.changed.since(name_of(file)).map(|since| since.max(ticks_of(file.id.changed)));
        since.is_some_and(|since| started.is_none_or(|started| started <= since))
    }
}
