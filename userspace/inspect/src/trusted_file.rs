//! Files that become code of ours: libraries that are loaded, programs that are started. Whoever can write to
//! one of them, or to a folder above it, acts with our rights.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Permission to write for others than the owner, and the bit by which others cannot rename what is not
/// theirs.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Checks that nobody but root, or the user that we are, can change what is at this path. Returns the path
/// without links, which is to be used in its place.
///
/// # Errors
/// There is no such file, or somebody else can change it: the error says where, and what to do.
pub fn trusted(path: &Path) -> io::Result<PathBuf> {
    check(path, rustix::process::geteuid().as_raw())
}

fn check(path: &Path, us: u32) -> io::Result<PathBuf> {
    let path = fs::canonicalize(path)?;
    for part in path.ancestors() {
        let about = fs::symlink_metadata(part)?;
        let refused = |what: String, remedy: &str| {
            let text = format!("`{}` {what}, who could put anything there: {remedy}", part.display());
            Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
        };
        if ![0, us].contains(&about.uid()) {
            return refused(format!("belongs to user {}", about.uid()), "let root own it");
        }
        let keeps_apart = about.is_dir() && about.mode() & STICKY != 0;
        if about.mode() & OTHERS_WRITE != 0 && !keeps_apart {
            return refused("can be written to by others".to_owned(), "chmod go-w");
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn what_others_can_change_is_refused_wherever_they_can() {
        let folder = tempfile::tempdir().unwrap();
        let folder = fs::canonicalize(folder.path()).unwrap();
        let us = fs::metadata(&folder).unwrap().uid();
        let above = folder.join("above");
        fs::create_dir(&above).unwrap();
        let (file, link) = (above.join("file"), folder.join("link"));
        fs::write(&file, "").unwrap();
        symlink(&file, &link).unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        set(&above, 0o755);
        set(&file, 0o644);
        assert_eq!((check(&file, us).unwrap(), check(&link, us).unwrap()), (file.clone(), file.clone()));
        for (path, mode, back) in [(&file, 0o646, 0o644), (&file, 0o664, 0o644), (&above, 0o777, 0o755)] {
            set(path, mode);
            let why = check(&link, us).unwrap_err().to_string();
            assert!(why.contains(&format!("`{}` can be written to by others", path.display())), "{why}");
            set(path, back);
        }
        // As in /tmp, nobody can rename what is not theirs.
        set(&above, 0o1777);
        assert!(check(&file, us).is_ok());
        assert!(check(&folder.join("none"), us).is_err());
        // For anybody else but root the folder is somebody else's.
        if us != 0 {
            let why = check(&file, us + 1).unwrap_err().to_string();
            assert!(why.contains(&format!("belongs to user {us}")), "{why}");
        }
    }

    #[test]
    fn a_file_of_another_user_is_refused_and_one_of_root_is_not() {
        if !rustix::process::geteuid().is_root() {
            assert!(trusted(Path::new("/proc/self/../1")).is_ok_and(|path| path == Path::new("/proc/1")));
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(trusted(&file).is_ok());
        std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
        assert!(trusted(&file).unwrap_err().to_string().contains("belongs to user 65534"));
    }
}
