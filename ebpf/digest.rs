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

/// Key of an object in the MANIFEST: `x86_64-sha256` of `ncclflow.x86_64.o`, `idle-sha256` of `idle.o`.
pub(crate) fn key_of(object: &str) -> String {
    let name = object.strip_suffix(".o").unwrap_or(object);
    format!("{}-sha256", name.strip_prefix("ncclflow.").unwrap_or(name))
}

/// Checks that the MANIFEST of a folder of objects names each of them, with its SHA-256. Whatever is embedded runs in the
/// kernel, as root. The error says which object is not so.
pub(crate) fn check_objects(folder: &Path) -> Result<(), String> {
    let read = |path: &Path| fs::read(path).map_err(|error| format!("reading `{}`: {error}", path.display()));
    let manifest = String::from_utf8_lossy(&read(&folder.join("MANIFEST"))?).into_owned();
    let entries = fs::read_dir(folder).map_err(|error| format!("listing `{}`: {error}", folder.display()))?;
    for entry in entries {
        let entry = entry.map_err(|error| format!("listing `{}`: {error}", folder.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().extension().is_none_or(|extension| extension != "o") {
            continue;
        }
        let sha256 = hex(&Sha256::digest(read(&entry.path())?));
        if !manifest.lines().any(|line| line == format!("{} {sha256}", key_of(&name))) {
            return Err(format!("`{}` is not the object of its MANIFEST", entry.path().display()));
        }
    }
    Ok(())
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
