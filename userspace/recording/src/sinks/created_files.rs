//! Files and folders that a recording has made in its folder. Only these are removed again.

use std::{io, sync::Arc};

use super::output_dir::OutputDir;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    pub(super) device: u64,
    pub(super) inode: u64,
}

#[derive(Debug)]
struct Entry {
    /// Path of the folder from the root.
    folder: Arc<str>,
    name: String,
    id: FileId,
}

/// Files and folders, each after the folder that it is in.
#[derive(Debug, Default)]
pub(super) struct Made(Vec<Entry>);

impl Made {
    pub(super) fn add(&mut self, folder: &Arc<str>, name: &str, id: FileId) {
        self.0.push(Entry { folder: Arc::clone(folder), name: name.to_owned(), id });
    }

    pub(super) fn rename(&mut self, folder: &str, from: &str, to: &str) {
        self.forget(folder, to);
        if let Some(at) = self.find(folder, from)
            && let Some(entry) = self.0.get_mut(at)
        {
            to.clone_into(&mut entry.name);
        }
    }

    pub(super) fn forget(&mut self, folder: &str, name: &str) {
        if let Some(at) = self.find(folder, name) {
            self.0.remove(at);
        }
    }

    pub(super) fn has(&self, folder: &str, name: &str, id: FileId) -> bool {
        self.find(folder, name).and_then(|at| self.0.get(at)).is_some_and(|entry| entry.id == id)
    }

    /// Removes all that nobody has replaced. Returns the bytes left, each file by its `cost`.
    pub(super) fn remove(self, root: &OutputDir, cost: impl Fn(u64) -> u64) -> u64 {
        let mut left = 0;
        let mut open: Option<(Arc<str>, io::Result<OutputDir>)> = None;
        for Entry { folder, name, id } in self.0.into_iter().rev() {
            if open.as_ref().is_none_or(|(path, _)| *path != folder) {
                open = Some((Arc::clone(&folder), root.open_below(&folder)));
            }
            // A folder that does not exist any more has nothing of ours in it.
            let Some((_, Ok(folder))) = &open else { continue };
            left += remove_one(folder, &name, id).map_or(0, &cost);
        }
        left
    }

    fn find(&self, folder: &str, name: &str) -> Option<usize> {
        self.0.iter().rposition(|entry| &*entry.folder == folder && entry.name == name)
    }
}

/// Removes an entry, or returns its bytes if that fails.
fn remove_one(folder: &OutputDir, name: &str, id: FileId) -> Option<u64> {
    match folder.look_at(name) {
        // The name belongs to another file now: ours has been moved or removed.
        Ok(found) if found.id != id => None,
        // A folder in which others have put something stays, with what they have put there.
        Ok(found) => folder.unlink(name, found.is_folder).err().map(|_| found.bytes),
        Err(error) => (error.kind() != io::ErrorKind::NotFound).then_some(0),
    }
}
