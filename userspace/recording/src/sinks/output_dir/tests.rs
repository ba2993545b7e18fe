use std::{io::Write as _, os::unix::fs::PermissionsExt as _};

use super::*;

#[test]
fn new_and_empty_folders_are_taken_and_full_ones_and_links_are_not() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("out");
    let dir = OutputDir::create(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    OutputDir::create(&path).unwrap();
    dir.create_file("a").unwrap();
    let file = dir.open_file("a").unwrap();
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(OutputDir::create(&path).unwrap_err().to_string().contains("not empty"));
    let link = parent.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(OutputDir::open(&link).is_err());
    // Who reads it has made the link, or chosen it; one inside is not followed.
    let read = OutputDir::open_to_read(&link).unwrap();
    assert_eq!(read.names().unwrap(), ["a"]);
    std::os::unix::fs::symlink(parent.path(), path.join("inside")).unwrap();
    assert!(read.open_subfolder("inside").is_err());
    assert!(
        OutputDir::create(&parent.path().join("a/../no/such"))
            .unwrap_err()
            .to_string()
            .contains("does not exist")
    );
}

#[test]
fn a_file_that_exists_or_is_a_link_is_never_written_through() {
    let parent = tempfile::tempdir().unwrap();
    let victim = parent.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    let dir = OutputDir::create(&parent.path().join("out")).unwrap();
    std::os::unix::fs::symlink(&victim, dir.path().join("trap")).unwrap();
    assert!(dir.create_file("trap").is_err());
    assert!(dir.open_file("trap").is_err());
    dir.replace_file(Share::Free, "trap", |file| file.write_all(b"new")).unwrap();
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(std::fs::read_to_string(dir.path().join("trap")).unwrap(), "new");
}

#[test]
fn a_replacement_that_fails_leaves_the_old_file() {
    let parent = tempfile::tempdir().unwrap();
    let dir = OutputDir::create(&parent.path().join("out")).unwrap();
    dir.replace_file(Share::Free, "a", |file| file.write_all(b"old")).unwrap();
    dir.replace_file(Share::Free, "a", |_| Err(io::Error::other("no"))).unwrap_err();
    assert_eq!(std::fs::read_to_string(dir.path().join("a")).unwrap(), "old");
    assert_eq!(dir.names().unwrap(), ["a"]);
}

#[test]
fn folders_above_are_made_and_are_ours_alone() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    OutputDir::create(&at("a/b/out")).unwrap();
    for made in ["a", "a/b", "a/b/out"] {
        assert_eq!(std::fs::metadata(at(made)).unwrap().permissions().mode() & 0o777, 0o700, "{made}");
    }
    // What is there may be a link: the user's own.
    std::os::unix::fs::symlink(at("a"), at("link")).unwrap();
    OutputDir::open_or_create(&at("link/c/d")).unwrap();
    assert!(at("a/c/d").is_dir());
    std::fs::write(at("file"), "").unwrap();
    for wrong in ["file/x", "file/x/y", "none/../x"] {
        assert!(OutputDir::open_or_create(&at(wrong)).is_err(), "{wrong}");
    }
    assert!(!at("none").exists());
}
