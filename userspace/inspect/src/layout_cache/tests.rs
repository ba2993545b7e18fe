use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};

use super::*;
use nccl_library::{elf::Machine, symbols::Resolution};

fn key(inode: u64) -> CacheKey {
    let file = LibraryId { device: 1, inode, size: 3, modified: (4, 5), changed: (6, 7) };
    CacheKey { format: FORMAT, version: "0".into(), program: file, library: file, request: "all".into() }
}

fn resolved() -> Resolved {
    let resolution = Resolution {
        build_id: None,
        nccl_version: None,
        cuda_version: None,
        machine: Machine::X86_64,
        symbol_source: SymbolSource::OwnDwarf,
        debug_file: None,
        layouts_from: nccl_library::symbols::LayoutSource::Dwarf,
        functions: std::collections::BTreeMap::new(),
        layouts: nccl_library::layouts::Layouts::default(),
        variables: std::collections::BTreeMap::new(),
        symmetric_kernels: Vec::new(),
        problems: Vec::new(),
    };
    Resolved { resolution, code: nccl_library::symbols::Code::default() }
}

fn cache() -> (tempfile::TempDir, LayoutCache) {
    let folder = tempfile::tempdir().unwrap();
    let cache = LayoutCache::open(&folder.path().join("a/layouts")).unwrap();
    (folder, cache)
}

#[test]
fn what_is_kept_is_there_for_the_same_key_only() {
    let (folder, cache) = cache();
    assert!(cache.load(&key(1)).is_none());
    cache.write(&key(1), &resolved()).unwrap();
    assert_eq!(cache.load(&key(1)).unwrap().resolution.symbol_source, SymbolSource::OwnDwarf);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder.path().join("a/layouts")), 0o700);
    assert_eq!(mode(&folder.path().join("a/layouts").join(key(1).file_name())), 0o600);
    let library = key(1).library;
    let others = [
        CacheKey { library: LibraryId { changed: (6, 8), ..library }, ..key(1) },
        CacheKey { library: LibraryId { modified: (4, 6), ..library }, ..key(1) },
        CacheKey { library: LibraryId { size: 4, ..library }, ..key(1) },
        CacheKey { library: LibraryId { device: 2, ..library }, ..key(1) },
        CacheKey { program: LibraryId { inode: 9, ..library }, ..key(1) },
        CacheKey { version: "1".into(), ..key(1) },
        CacheKey { request: "more".into(), ..key(1) },
        CacheKey { format: FORMAT + 1, ..key(1) },
    ];
    for other in others {
        assert!(cache.load(&other).is_none(), "{other:?}");
    }
}

#[test]
fn a_changed_library_takes_the_place_of_its_former_self() {
    let (folder, cache) = cache();
    cache.write(&key(1), &resolved()).unwrap();
    let changed = CacheKey { library: LibraryId { changed: (9, 9), ..key(1).library }, ..key(1) };
    cache.write(&changed, &resolved()).unwrap();
    assert!(cache.load(&key(1)).is_none() && cache.load(&changed).is_some());
    assert_eq!(fs::read_dir(folder.path().join("a/layouts")).unwrap().count(), 1);
}

#[test]
fn what_is_damaged_or_foreign_is_not_there_and_is_written_anew() {
    let (folder, cache) = cache();
    let path = folder.path().join("a/layouts").join(key(1).file_name());
    cache.write(&key(1), &resolved()).unwrap();
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&path, &damaged).unwrap();
        assert!(cache.load(&key(1)).is_none(), "byte {at}");
        fs::write(&path, &whole[..at]).unwrap();
        assert!(cache.load(&key(1)).is_none(), "{at} bytes");
    }
    fs::write(&path, &whole).unwrap();
    assert!(cache.load(&key(1)).is_some());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(cache.load(&key(1)).is_none(), "others can read it, so perhaps they could write it");
    let target = folder.path().join("target");
    fs::rename(&path, &target).unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).unwrap();
    symlink(&target, &path).unwrap();
    assert!(cache.load(&key(1)).is_none(), "links are not followed");
    cache.write(&key(1), &resolved()).unwrap();
    assert!(cache.load(&key(1)).is_some());
    assert_eq!(fs::read(&target).unwrap(), whole, "nor written through");
}

#[test]
fn a_folder_that_others_can_write_to_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("layouts");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(LayoutCache::open(&path).unwrap_err().to_string().contains("not used"));
    let link = folder.path().join("link");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    symlink(&path, &link).unwrap();
    assert!(LayoutCache::open(&link).is_err());
    assert!(LayoutCache::open(&path).is_ok());
}

#[test]
fn the_number_of_entries_is_bounded() {
    let (folder, cache) = cache();
    for inode in 0..MAX_ENTRIES as u64 + 20 {
        cache.write(&key(inode), &resolved()).unwrap();
    }
    assert_eq!(fs::read_dir(folder.path().join("a/layouts")).unwrap().count(), MAX_ENTRIES);
    assert!(cache.load(&key(MAX_ENTRIES as u64 + 19)).is_some());
}

#[test]
fn a_file_that_was_changed_lately_is_not_kept() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(6) + SETTLED;
    assert!(key(1).is_settled(now));
    assert!(!key(1).is_settled(now - Duration::from_secs(1)));
    assert!(!key(1).is_settled(SystemTime::UNIX_EPOCH), "a clock that was set back");
}
