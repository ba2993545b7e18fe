//! Digest of the eBPF object's inputs. Shared, as a file, by `cargo xtask make ebpf` (which writes it beside the object)
//! and `userspace/trace/build.rs` (which refuses to embed an object built from other sources).

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

/// Files and folders, relative to the repository's root, that the object is made of.
pub(crate) const INPUTS: [&str; 5] =
    ["common/Cargo.toml", "common/src", "ebpf/Cargo.lock", "ebpf/Cargo.toml", "ebpf/src"];

/// Every input file, sorted.
pub(crate) fn input_files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut pending: Vec<PathBuf> = INPUTS.iter().map(|input| root.join(input)).collect();
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            for entry in fs::read_dir(&path)? {
                pending.push(entry?.path());
            }
        } else {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// SHA-256 over each input's path and content, as lower-case hex.
pub(crate) fn of_inputs(root: &Path) -> io::Result<String> {
    let mut sha = Sha256::new();
    for file in input_files(root)? {
        let content = fs::read(&file)?;
        let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
        sha.update((name.len() as u64).to_le_bytes());
        sha.update(name.as_bytes());
        sha.update((content.len() as u64).to_le_bytes());
        sha.update(&content);
    }
    Ok(hex(&sha.finalize()))
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
