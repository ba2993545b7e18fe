//! File systems in user space that owe an answer, by the kernel's counts (`/sys/fs/fuse/connections`,
//! Documentation/filesystems/fuse.rst). Looking at these counts asks no file system.

use std::{fs, io::Read as _, path::Path};

const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// Most connections that are looked at.
const MAX_CONNECTIONS: usize = 1024;

/// Returns the numbers of the connections that have requests without an answer, in order; none where their
/// list is not mounted, or may not be read.
pub fn fuse_connections_that_owe_an_answer() -> Vec<u32> {
    owe_an_answer(Path::new(CONNECTIONS))
}

fn owe_an_answer(folder: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut numbers: Vec<u32> = entries
        .flatten()
        .take(MAX_CONNECTIONS)
        .filter(|entry| waiting(&entry.path()).is_some_and(|waiting| waiting > 0))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

/// Returns the number of requests of a connection that have no answer yet.
fn waiting(connection: &Path) -> Option<u64> {
    let mut text = String::new();
    fs::File::open(connection.join("waiting")).ok()?.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_wait_are_found_and_what_is_none_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        for (name, waiting) in [
            ("53", Some("2\n")),
            ("7", Some("1")),
            ("8", Some("0\n")),
            ("9", None),
            ("x", Some("1")),
            ("10", Some("many")),
        ] {
            fs::create_dir(folder.path().join(name)).unwrap();
            if let Some(waiting) = waiting {
                fs::write(folder.path().join(name).join("waiting"), waiting).unwrap();
            }
        }
        assert_eq!(owe_an_answer(folder.path()), [7, 53]);
        assert_eq!(owe_an_answer(&folder.path().join("nothing")), [0; 0]);
    }
}
