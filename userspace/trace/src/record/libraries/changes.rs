//! Changes of files that have probes.

use std::{mem, os::fd::BorrowedFd, time::Duration};

use inspect::{clock::now_ns, process::MappedLibrary};
use rustix::time::ClockId;

use super::{
    super::{
        file_watch::{FileWatch, ticks_now, ticks_of},
        setup::{Change, is_recent},
    },
    Gone, Libraries, Traced, give_back, name_of,
};

impl Libraries<'_> {
    /// Returns the watch for changes of files with probes on them.
    pub(in crate::record) fn watch(&mut self) -> &mut FileWatch {
        &mut self.watch
    }

    pub(in crate::record) fn watch_fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.fd()
    }

    /// Returns the time until the next look; `None` if no file has probes.
    pub(in crate::record) fn watch_timeout(&self) -> Option<Duration> {
        self.known.iter().any(|library| library.traced.is_ok()).then(|| self.watch.timeout())
    }

    /// Takes the libraries whose files were found to be changed.
    pub(in crate::record) fn take_gone(&mut self) -> Vec<Gone> {
        mem::take(&mut self.gone)
    }

    /// Returns why the last look did not see all files; unseen files keep their probes.
    pub(in crate::record) fn not_looked_at(&self) -> Option<&str> {
        self.not_looked_at.as_deref()
    }

    /// Takes the probes off files that are no longer what was resolved.
    pub(in crate::record) fn look_for_changes(&mut self) {
        let Self { known, reaper, changed, gone, unused, .. } = self;
        self.not_looked_at = None;
        for (index, library) in known.iter_mut().enumerate() {
            let (Some(file), Ok(Traced { library: in_use, .. })) = (&mut library.file, &mut library.traced)
            else {
                continue;
            };
            match in_use.unchanged() {
                Ok(status) => {
                    library.unchanged_ns = now_ns(ClockId::Monotonic);
                    file.id = status.id;
                    in_use.adopt(status.id);
                }
                Err(why) if why.is_unseen() && is_recent(library.unchanged_ns) => {
                    self.not_looked_at.get_or_insert_with(|| format!("`{}`: {why}", file.shown()));
                }
                Err(why) => {
                    // Whoever was started before its ctime can have the former content; without one, before
                    // now.
                    let since = if matches!(why, Change::Changed) { 0 } else { ticks_now() };
                    changed.add(name_of(file), since);
                    let (path, unchanged_ns) = (file.shown(), library.unchanged_ns);
                    let why = why.to_string();
                    gone.push(Gone { index, path, why: why.clone(), unchanged_ns });
                    library.file = None;
                    if let Ok(Traced { links, cookies, meaning, .. }) =
                        mem::replace(&mut library.traced, Err(why))
                    {
                        reaper.take(links);
                        // Whoever changes a file again and again uses none up.
                        give_back(unused, meaning, cookies);
                    }
                }
            }
        }
    }

    /// Tells whether a process started at `started` can have the former content of a changed file mapped.
    pub(super) fn may_have_former(&self, file: &MappedLibrary, started: Option<u64>) -> bool {
        let since = self.changed.since(name_of(file)).map(|since| since.max(ticks_of(file.id.changed)));
        since.is_some_and(|since| started.is_none_or(|started| started <= since))
    }
}
