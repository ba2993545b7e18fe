//! Separate debug files, found by build-id, or by the debug link and its checksum.
//!
//! Only places that the user names, and the system's own folder, are looked at. The library may be hostile:
//! only its build-id and a plain file name are taken from it to find a file, and both have to fit what is
//! found.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Problem;
use super::problems;
use crate::elf::{Budget, BuildId, Error, ErrorKind, Image};

const SYSTEM: &str = "/usr/lib/debug";
/// Most files and folders that are looked at below a folder that the user names.
const MAX_ENTRIES: usize = 20_000;
/// Greatest depth at which they are looked at; `site-packages/nvidia/nccl/lib/libnccl.so.2` is at 4.
const MAX_DEPTH: usize = 6;
/// Largest `.gnu_debuglink`: a name and a checksum.
const MAX_LINK: u64 = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebugFiles {
    files: Vec<PathBuf>,
    folders: Vec<PathBuf>,
    system: bool,
}

impl DebugFiles {
    /// Looks in these files, in these folders with debug files or unstripped libraries, and in the system's
    /// folder for debug files.
    pub fn new(files: Vec<PathBuf>, folders: Vec<PathBuf>) -> Self {
        Self { files, folders, system: true }
    }

    /// Returns the files and folders that are looked at.
    pub fn places(&self) -> impl Iterator<Item = &Path> {
        let system = self.system.then_some(Path::new(SYSTEM));
        self.files.iter().chain(&self.folders).map(PathBuf::as_path).chain(system)
    }

    /// Finds the first file that belongs to the library and has debugging information.
    pub(super) fn find(
        &self,
        library: &Image,
        budget: &mut Budget,
        found: &mut Vec<Problem>,
    ) -> Option<Image> {
        let link = DebugLink::read(library, budget);
        for file in &self.files {
            match usable(file, library, link.as_ref()) {
                Ok(image) => return Some(image),
                Err(error) => found.push(problems::debug_information("debug file", &error)),
            }
        }
        let system = self.system.then(|| PathBuf::from(SYSTEM));
        let build_id = library.build_id();
        for folder in self.folders.iter().chain(&system) {
            let by_build_id = build_id.and_then(|build_id| in_build_id_tree(folder, build_id));
            let by_link = link
                .iter()
                .flat_map(|link| ["", ".debug"].map(|between| folder.join(between).join(&link.name)));
            let mut places = by_build_id.into_iter().chain(by_link);
            if let Some(image) = places.find_map(|place| usable(&place, library, link.as_ref()).ok()) {
                return Some(image);
            }
        }
        // Libraries by any name, but only where their build-id can prove them.
        build_id?;
        self.folders.iter().find_map(|folder| search(folder, library))
    }
}

/// Returns the path `.build-id/ab/cdef….debug` below a folder.
fn in_build_id_tree(folder: &Path, build_id: &BuildId) -> Option<PathBuf> {
    let digits = build_id.to_string();
    let (first, rest) = digits.split_at_checked(2).filter(|(_, rest)| !rest.is_empty())?;
    Some(folder.join(".build-id").join(first).join(format!("{rest}.debug")))
}

fn usable(place: &Path, library: &Image, link: Option<&DebugLink>) -> Result<Image, Error> {
    let image = Image::open(place)?;
    belongs(library, &image, link)?;
    has_debugging_information(&image)?;
    Ok(image)
}

/// Searches a folder of libraries, the nearest files first.
fn search(folder: &Path, library: &Image) -> Option<Image> {
    let mut folders = VecDeque::from([(folder.to_owned(), 0)]);
    let mut left = MAX_ENTRIES;
    while let Some((folder, depth)) = folders.pop_front() {
        let mut entries: Vec<_> = fs::read_dir(&folder).into_iter().flatten().flatten().take(left).collect();
        left = left.saturating_sub(entries.len());
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            // A link to a folder could lead in circles.
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth < MAX_DEPTH => folders.push_back((path, depth + 1)),
                Ok(kind) if !kind.is_dir() => {
                    if let Ok(image) = usable(&path, library, None) {
                        return Some(image);
                    }
                }
                _ => {}
            }
        }
    }
    None
}

fn has_debugging_information(image: &Image) -> Result<(), Error> {
    if image.section(".debug_info").is_some_and(|section| section.size > 0) {
        return Ok(());
    }
    let what = "has no debugging information";
    Err(Error::new(ErrorKind::Unsupported, image.name(), what)
        .with_advice("give the library as it was before it was stripped, or its `.debug` file"))
}

/// Checks that a file is of the same build as the library.
fn belongs(library: &Image, file: &Image, link: Option<&DebugLink>) -> Result<(), Error> {
    let advice = "give the debug file of exactly this build of the library";
    let other = |what: String| Err(Error::new(ErrorKind::Unsupported, file.name(), what).with_advice(advice));
    if library.machine() != file.machine() {
        return other("is for another processor than the library".to_owned());
    }
    match (library.build_id(), file.build_id(), link) {
        (Some(wanted), Some(found), _) if wanted == found => Ok(()),
        (Some(wanted), Some(found), _) => other(format!("has build-id {found}, the library has {wanted}")),
        (_, _, Some(link)) => {
            let checksum = checksum(file)?;
            if checksum == link.checksum {
                return Ok(());
            }
            other(format!(
                "has checksum {checksum:08x}, the library's debug link states {:08x}",
                link.checksum
            ))
        }
        _ => {
            other("cannot be proven to belong to the library: build-id and debug link are missing".to_owned())
        }
    }
}

/// Computes the CRC-32 of the whole file, as GDB does.
fn checksum(image: &Image) -> Result<u32, Error> {
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    loop {
        let count = image
            .file()
            .read_at(&mut buffer, offset)
            .map_err(|error| Error::new(ErrorKind::Io, image.name(), error.to_string()))?;
        if count == 0 {
            return Ok(hasher.finalize());
        }
        hasher.update(buffer.get(..count).unwrap_or_default());
        offset = offset.saturating_add(count as u64);
    }
}

/// Contents of `.gnu_debuglink`: a file name, and the checksum of that file.
#[derive(Debug, PartialEq, Eq)]
struct DebugLink {
    name: String,
    checksum: u32,
}

impl DebugLink {
    fn read(image: &Image, budget: &mut Budget) -> Option<Self> {
        let section = image.section(".gnu_debuglink")?;
        Self::parse(&image.section_data(section, MAX_LINK, budget).ok()?)
    }

    /// Parses the name, a zero byte, zeros up to a multiple of 4, and the checksum.
    fn parse(data: &[u8]) -> Option<Self> {
        let end = memchr::memchr(0, data)?;
        let name = std::str::from_utf8(data.get(..end)?).ok()?;
        // It is joined to a folder's path: it must not lead out of there.
        let plain = !name.is_empty() && name != "." && name != ".." && !name.contains('/');
        let at = (end + 1).next_multiple_of(4);
        let checksum = u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?);
        plain.then(|| Self { name: name.to_owned(), checksum })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{DebugLink, in_build_id_tree};
    use crate::elf::BuildId;

    #[test]
    fn debug_links() {
        let link = DebugLink::parse(b"nccl.debug\0\0\x01\x02\x03\x04").unwrap();
        assert_eq!(link, DebugLink { name: "nccl.debug".into(), checksum: 0x0403_0201 });
        for data in [
            &b""[..],
            b"a\0\0\0",
            b"\0\0\0\0abcd",
            b"../x\0\0\0\0abcd",
            b"..\0\0abcd",
            b"name",
            b"\xff\0\0\0abcd",
        ] {
            assert_eq!(DebugLink::parse(data), None, "{data:?}");
        }
    }

    #[test]
    fn build_id_tree() {
        let place = |hex| in_build_id_tree(Path::new("/d"), &BuildId::from_hex(hex).unwrap());
        assert_eq!(place("3c098e06").as_deref(), Some(Path::new("/d/.build-id/3c/098e06.debug")));
        assert_eq!(place("3c"), None);
    }
}
