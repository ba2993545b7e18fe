//! What `export` makes of a recording, and files below a folder.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use super::ran::ncclflow_of;

/// Exports the recording of this session to a new folder, as lines.
///
/// # Panics
/// If that fails.
pub fn lines(session: &Path, output: &Path) {
    ncclflow_of("export -f jsonl -o", &[output, session]).ok();
}

/// Lines of what is in the recording of a session that goes on; an empty folder, where there is no record yet.
///
/// # Panics
/// If there is no room for a folder.
pub fn until_now(session: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("making a folder: {error}"));
    // It fails where nothing has begun.
    let _ = ncclflow_of("export -f jsonl -o", &[folder.path(), session]);
    folder
}

/// Exports a session's recording, which needs no root, and compares every file with those that `record` made, byte for
/// byte.
///
/// # Panics
/// If anything differs, or a file cannot be read.
pub fn check(session: &Path) {
    let again = tempfile::tempdir().unwrap_or_else(|error| panic!("making a folder: {error}"));
    let again = again.path().join("again");
    lines(session, &again);
    let (mut live, again) = (files_below(session), files_below(&again));
    live.retain(|name, _| !name.starts_with("recording"));
    assert!(live.len() > 1, "a recording without a file");
    assert_eq!(live.keys().collect::<Vec<_>>(), again.keys().collect::<Vec<_>>());
    let differing: Vec<_> =
        live.iter().filter(|(name, content)| again.get(*name) != Some(content)).map(|file| file.0).collect();
    assert!(differing.is_empty(), "{differing:?}");
}

/// Every file below a folder, by its path from there.
///
/// # Panics
/// If something cannot be read, as where a file goes meanwhile: see [`names_below`].
pub fn files_below(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let content = |name: PathBuf| {
        let path = folder.join(&name);
        let content = fs::read(&path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
        (name, content)
    };
    names_below(folder).into_iter().map(content).collect()
}

/// The path of every file below a folder, from there. Files and folders may come and go meanwhile.
///
/// # Panics
/// If a folder cannot be read for another reason than that it is gone.
pub fn names_below(folder: &Path) -> BTreeSet<PathBuf> {
    let (mut names, mut pending) = (BTreeSet::new(), vec![folder.to_path_buf()]);
    while let Some(next) = pending.pop() {
        let entries = match fs::read_dir(&next) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound && next != folder => continue,
            Err(error) => panic!("`{}`: {error}", next.display()),
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                pending.push(path);
            } else {
                names.insert(path.strip_prefix(folder).unwrap_or(&path).to_path_buf());
            }
        }
    }
    names
}
